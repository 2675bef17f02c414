//! `redlatch top`: prints the list of `redlatch ls` at intervals.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table, TableState};
use ratatui::{DefaultTerminal, Frame};
use redlatch::status::Status;
use redlatch::{Client, Error, Owner};

use crate::args::Args;
use crate::trouble::{SOFTWARE, Trouble, shown};
use crate::who;

/// The time between two checks for a finished scan, while no key is pressed.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) fn top(args: &Args, pattern: &str, every: Duration, json: bool) -> Result<u8, Trouble> {
    let client = args.client()?.connect()?;
    if json || !std::io::stdout().is_terminal() {
        return print(&client, pattern, every, json);
    }
    let scans = scan(client, pattern.to_owned(), every)?;
    let failed = |error| Trouble::new(SOFTWARE, format!("cannot use the terminal: {error}"));
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let ended = Screen::default().show(&mut terminal, &scans);
    ratatui::restore();
    ended.map_err(failed)?;
    // A scan may be running, but this process holds no lock.
    std::process::exit(0)
}

/// Prints each scan and an empty line, until the reader of the output ends.
fn print(client: &Client, pattern: &str, every: Duration, json: bool) -> Result<u8, Trouble> {
    for scan in 1_u64.. {
        let mut text = String::new();
        for status in client.statuses(pattern)? {
            if json {
                let mut object = who::object(&status);
                object["scan"] = scan.into();
                text += &who::json_line(&object);
            } else {
                text += &who::line(&status);
            }
        }
        if !json {
            text += "\n";
        }
        if !crate::write(text.as_bytes())? {
            break;
        }
        thread::sleep(every);
    }
    Ok(0)
}

struct Scan {
    found: Result<Vec<Status>, Error>,
    took: Duration,
}

/// Scans in a separate thread, because a scan may take long and the screen must react to keys.
fn scan(client: Client, pattern: String, every: Duration) -> Result<Receiver<Scan>, Trouble> {
    let (scans, seen) = channel();
    let scan = move || {
        loop {
            let begun = Instant::now();
            let found = client.statuses(&pattern);
            if scans.send(Scan { found, took: begun.elapsed() }).is_err() {
                return;
            }
            thread::sleep(every);
        }
    };
    let started = thread::Builder::new().name("scan".to_owned()).spawn(scan);
    started.map_err(|error| Trouble::new(SOFTWARE, format!("cannot start a thread: {error}")))?;
    Ok(seen)
}

#[derive(Default)]
struct Screen {
    statuses: Vec<Status>,
    /// The time at which a scan first saw this owner with this name. The server does not store when
    /// an owner got a lock.
    since: HashMap<(String, Owner), Instant>,
    took: Option<Duration>,
    trouble: Option<String>,
    table: TableState,
}

impl Screen {
    fn show(
        mut self,
        terminal: &mut DefaultTerminal,
        scans: &Receiver<Scan>,
    ) -> std::io::Result<()> {
        loop {
            terminal.draw(|frame| self.draw(frame))?;
            if event::poll(LOOK)?
                && let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
            {
                let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c' | 'd') if is_control => return Ok(()),
                    KeyCode::Down | KeyCode::Char('j') => self.table.select_next(),
                    KeyCode::Up | KeyCode::Char('k') => self.table.select_previous(),
                    _ => {}
                }
            }
            scans.try_iter().for_each(|scan| self.take(scan));
        }
    }

    fn take(&mut self, scan: Scan) {
        self.took = Some(scan.took);
        match scan.found {
            Ok(mut statuses) => {
                // The names with the most waiters come first.
                statuses.sort_by_key(|status| std::cmp::Reverse(who::waiting(status)));
                let (now, mut since) = (Instant::now(), HashMap::new());
                for status in &statuses {
                    for holder in &status.holders {
                        let key = (status.name.clone(), holder.owner.clone());
                        let first = self.since.get(&key).copied().unwrap_or(now);
                        since.insert(key, first);
                    }
                }
                (self.statuses, self.since, self.trouble) = (statuses, since, None);
            }
            Err(error) => self.trouble = Some(shown(&format!("{error:#}"))),
        }
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
                .areas(frame.area());
        let waiting: u64 = self.statuses.iter().map(who::waiting).sum();
        let scan = self.took.map_or_else(String::new, |took| format!("; a scan took {took:.1?}"));
        let text = format!("redlatch: {} in use, {waiting} waiting{scan}", self.statuses.len());
        frame.render_widget(Line::from(text).bold(), head);
        let widths = [
            Constraint::Fill(2),
            Constraint::Length(20),
            Constraint::Fill(3),
            Constraint::Length(10),
            Constraint::Length(10),
            Constraint::Length(8),
        ];
        let titles = Row::new(["NAME", "KIND", "HELD BY", "SEEN FOR", "LEFT", "WAITING"]);
        let table = Table::new(self.statuses.iter().map(|status| self.row(status)), widths)
            .header(titles.style(Style::new().reversed()))
            .row_highlight_style(Style::new().bold());
        frame.render_stateful_widget(table, body, &mut self.table);
        let foot_line = match &self.trouble {
            Some(trouble) => Line::from(trouble.as_str()).fg(Color::Red),
            None => Line::from("q ends; up and down move").dim(),
        };
        frame.render_widget(foot_line, foot);
    }

    fn row(&self, status: &Status) -> Row<'static> {
        let since = status.holders.iter().filter_map(|holder| {
            self.since.get(&(status.name.clone(), holder.owner.clone())).map(Instant::elapsed)
        });
        let since = since.max().map_or_else(|| "-".to_owned(), who::seconds);
        let row = Row::new([
            shown(&status.name),
            who::word(status.kind).to_owned(),
            shown(&who::holders(status)),
            since,
            who::left(status),
            who::waiting(status).to_string(),
        ]);
        if who::waiting(status) > 0 { row.fg(Color::Yellow) } else { row }
    }
}
