//! The timeline of a violation, with a line for each event of the name and a column for each
//! process.

use std::collections::BTreeSet;
use std::io::{self, Write};

use crate::check::{self, Findings, Hold, Violation};
use crate::clock::ms;
use crate::history::{Event, Round};

/// The time before and after a violation that the timeline shows.
const BEFORE: u64 = ms(5000);
const AFTER: u64 = ms(1000);
/// The maximum number of lines around each end of the violation. A busy name has thousands of
/// events.
const LINES: usize = 120;

/// An event of a process, or of the nemesis.
struct Line {
    at: u64,
    process: Option<u32>,
    text: String,
}

/// Writes the timeline. Times are in ms from the beginning of the violation.
pub(crate) fn write(out: &mut impl Write, round: &Round, violation: &Violation) -> io::Result<()> {
    let holds = check::holds(round, &mut Findings::default());
    let holds = holds.get(&violation.name).map_or(&[][..], Vec::as_slice);
    let mut lines = lines(round, holds, &violation.name, violation.from);
    let (from, to) = (violation.from, violation.to.max(violation.from));
    lines.retain(|it| it.at + BEFORE >= from && it.at <= to + AFTER);
    lines.sort_by_key(|it| it.at);
    let (first, last) =
        (lines.partition_point(|it| it.at < from), lines.partition_point(|it| it.at <= to));
    let is_near = |at: usize| {
        at + LINES >= first && at < first + LINES || at + LINES >= last && at < last + LINES
    };
    let mut at = 0;
    lines.retain(|_| (is_near(at), at += 1).0);
    let processes: BTreeSet<u32> = lines.iter().filter_map(|it| it.process).collect();
    writeln!(
        out,
        "\n  # holds it (2: two holds)  . asked for it  ! was stopped  x is dead\n\n  {:>12} |{}|",
        "ms",
        processes.iter().map(|it| format!("{it:>4}")).collect::<String>()
    )?;
    for line in &lines {
        let columns: String = processes
            .iter()
            .map(|it| format!("{:>4}", state(round, holds, *it, line.at)))
            .collect();
        let who = line.process.map_or_else(|| "nemesis".to_owned(), |it| format!("process {it}"));
        let when = since(line.at, from);
        writeln!(out, "  {when:>12} |{columns}| {who}: {}", line.text)?;
    }
    writeln!(out)
}

fn lines(round: &Round, holds: &[Hold], name: &str, from: u64) -> Vec<Line> {
    let mut lines = Vec::new();
    for hold in holds {
        let (id, grant) = (hold.grant.id, &hold.grant);
        let mut add = |at, text| lines.push(Line { at, process: Some(hold.process), text });
        let mut granted = format!(
            "hold {id} granted, {} of {}, asked at {}, says held until {}",
            grant.weight,
            grant.capacity,
            since(grant.call, from),
            since(grant.until, from)
        );
        if grant.token > 0 {
            granted.push_str(&format!(", token {}", grant.token));
        }
        add(grant.at, granted);
        for [at, until] in &hold.seen {
            add(*at, format!("hold {id} says held until {}", since(*until, from)));
        }
        if let Some([at, until]) = hold.leaving {
            let says = match until {
                0 => "lost".to_owned(),
                until => format!("held until {}", since(until, from)),
            };
            add(at, format!("hold {id} begins its release, says {says}"));
        }
        if let Some((at, outcome)) = hold.left {
            add(at, format!("hold {id} has left: {outcome}"));
        }
        for (at, is_wanted) in &hold.heard {
            let who = if *is_wanted { "others wait" } else { "nobody waits" };
            add(*at, format!("hold {id} hears that {who}"));
        }
        if let Some(at) = hold.lost {
            add(at, format!("hold {id} is told of its loss"));
        }
    }
    for process in &round.processes {
        let mut add = |at, text| lines.push(Line { at, process: Some(process.number), text });
        for event in &process.events {
            match event {
                Event::Missed { name: of, call, at, outcome, .. } if of == name => {
                    add(*at, format!("a call since {} ends: {outcome}", since(*call, from)));
                }
                Event::Stepped { step, name: of, call, at, number, outcome, .. } if of == name => {
                    let call = since(*call, from);
                    add(*at, format!("{step} {number} since {call} ends: {outcome}"));
                }
                Event::Odd { at, text } => add(*at, text.clone()),
                _ => {}
            }
        }
        if let Some(at) = process.killed {
            add(at, "is dead".to_owned());
        }
    }
    for fault in &round.faults {
        let of = fault.process.map(|it| format!(" of process {it}")).unwrap_or_default();
        let text = format!("{}{of} until {}", fault.kind, since(fault.to, from));
        lines.push(Line { at: fault.from, process: None, text });
    }
    lines
}

/// Returns the text in a process's column at this time.
fn state(round: &Round, holds: &[Hold], process: u32, at: u64) -> String {
    let own = || holds.iter().filter(|it| it.process == process);
    let killed = round.processes.iter().find(|it| it.number == process).and_then(|it| it.killed);
    let held = own().filter(|it| it.grant.at <= at && at < it.claims_until()).count();
    if killed.is_some_and(|killed| killed <= at) {
        "x".to_owned()
    } else if round.stopped(process, at, at + 1) > 0 {
        "!".to_owned()
    } else if held > 1 {
        held.to_string()
    } else if held == 1 {
        "#".to_owned()
    } else if own().any(|it| it.grant.call <= at && at < it.grant.at) {
        ".".to_owned()
    } else {
        String::new()
    }
}

fn since(at: u64, from: u64) -> String {
    format!("{:+.3}", (i128::from(at) - i128::from(from)) as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Fault, parse};

    #[test]
    fn a_timeline_shows_each_process_in_its_column() {
        let hold = |id, at: u64| {
            let until = at + ms(900);
            format!("G {id} reentrant a 1 1 {} {at} {until} {} 0 0\n", at - ms(1), ms(1000))
        };
        let round = Round {
            processes: vec![
                parse(3, &hold(1, ms(10_000)), None).unwrap(),
                parse(4, &hold(1, ms(10_100)), Some(ms(10_200))).unwrap(),
            ],
            faults: vec![Fault {
                kind: "stop".to_owned(),
                from: ms(10_050),
                to: ms(10_150),
                process: Some(3),
                forgets: false,
            }],
        };
        let found = check::check(&round);
        let mut page = Vec::new();
        write(&mut page, &round, &found.violations[0]).unwrap();
        let page = String::from_utf8(page).unwrap();
        assert!(page.contains("      +100.000 |   !   #| process 4: hold 1 granted"), "{page}");
        assert!(page.contains("      +200.000 |   #   x| process 4: is dead"), "{page}");
        assert!(page.contains("nemesis: stop of process 3 until +150.000"), "{page}");
    }
}
