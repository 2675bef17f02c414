//! The manual page. The page describes the command and each subcommand, and ends with the recipes.

use std::fmt::Write as _;
use std::io::Result;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use crate::args::Args;

/// The page of recipes. A test runs the recipes.
const RECIPES: &str = include_str!("../shell.md");

/// Returns the manual page in roff.
pub(crate) fn manual() -> Result<Vec<u8>> {
    let mut command = Args::command();
    command.build();
    let tasks: Vec<_> = command.get_subcommands().filter(|it| it.get_name() != "help").collect();
    let mut page = Vec::new();
    let whole = Man::new(command.clone());
    whole.render_title(&mut page)?;
    whole.render_name_section(&mut page)?;
    let mut text = ".SH SYNOPSIS\n.nf\n".to_owned();
    for task in &tasks {
        let usage = (*task).clone().render_usage().to_string();
        for line in usage.trim_start_matches("Usage: ").lines() {
            let _fits = writeln!(text, "{}", escaped(line.trim_start()));
        }
    }
    text += ".fi\n.SH OPTIONS OF ALL\n";
    text += &body(&command)?;
    for task in &tasks {
        let about = task.get_long_about().or_else(|| task.get_about()).cloned().unwrap_or_default();
        let about = escaped(&about.to_string());
        let _fits = writeln!(text, ".SH REDLATCH {}\n{about}", task.get_name().to_uppercase());
        text += &body(task)?;
    }
    let mut lines = RECIPES.lines().peekable();
    while let Some(line) = lines.next() {
        // The head of a table. The next line is a separator.
        if lines.next_if(|line| line.starts_with("|---")).is_some() {
            continue;
        }
        if let Some((first, rest)) = line.strip_prefix("| ").and_then(|row| row.split_once(" | ")) {
            text += &format!(".TP\n{}\n{}\n", escaped(first), escaped(rest.trim_end_matches(" |")));
            continue;
        }
        match (line.strip_prefix("## "), line) {
            (Some(title), _) => text += &format!(".SH {}\n", escaped(&title.to_uppercase())),
            (None, "```sh") => text += ".RS\n.nf\n",
            (None, "```") => text += ".fi\n.RE\n",
            (None, "") => text += ".PP\n",
            (None, "# From a shell") => text += ".SH MORE\n",
            (None, line) => text += &format!("{}\n", escaped(line)),
        }
    }
    page.extend_from_slice(text.as_bytes());
    Ok(page)
}

/// Returns the options of a subcommand, without the common options, and the end of its help.
fn body(command: &Command) -> Result<String> {
    let mut command = command.clone();
    if command.get_name() != "redlatch" {
        let is_of_all = |arg: &clap::Arg| {
            matches!(arg.get_id().as_str(), "url" | "url_file" | "prefix" | "quiet" | "help")
        };
        command = command.mut_args(|arg| if is_of_all(&arg) { arg.hide(true) } else { arg });
    }
    let (mut text, page) = (Vec::new(), Man::new(command));
    page.render_options_section(&mut text)?;
    text.extend_from_slice(b".PP\n");
    page.render_extra_section(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().filter(|line| !line.starts_with(".SH"));
    Ok(lines.map(|line| format!("{line}\n")).collect::<String>())
}

fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}
