//! The events of a history, one on each line, in a file for each worker process.
//!
//! A worker writes each line with one call before it continues, so a killed worker's file has all
//! its lines. Spaces separate the fields of a line, and the first field is the event's letter.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::str::FromStr;

/// The kind of a name, which determines the rules for the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Reentrant,
    Fair,
    ReadWrite,
    Fenced,
    /// Permits without leases.
    Semaphore,
    /// Permits with leases.
    Expirable,
}

/// How a call or a release ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    Done,
    /// The call returned `None` or `false`, because the lock was not free or did not become free in
    /// time.
    Not,
    Cancelled,
    /// The lease was lost before.
    Lost,
    /// The server was unreachable or refused the request, but it may have applied the request.
    Trouble,
    /// The barrier is broken.
    Broken,
    /// The call was cancelled, or the server lost the result. The server may have applied the
    /// request.
    Unsure,
    /// The lock was left to expire.
    Kept,
    /// The guard was dropped, so the caller got no result.
    Posted,
    /// Any other error.
    Wrong,
}

macro_rules! letters {
    ($type:ident { $($variant:ident $letter:literal),+ $(,)? }) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $letter),+ })
            }
        }

        impl FromStr for $type {
            type Err = ();
            fn from_str(text: &str) -> Result<Self, ()> {
                match text { $($letter => Ok(Self::$variant),)+ _ => Err(()) }
            }
        }
    };
}

letters!(Kind {
    Reentrant "reentrant", Fair "fair", ReadWrite "readwrite", Fenced "fenced",
    Semaphore "semaphore", Expirable "expirable",
});
letters!(Outcome {
    Done "done", Not "not", Cancelled "cancelled", Lost "lost", Trouble "trouble",
    Posted "posted", Wrong "wrong", Broken "broken", Kept "kept",
    Unsure "unsure",
});
letters!(Step {
    Set "set", CountDown "down", Wait "wait", Notify "notify", Sleep "sleep", Arrive "arrive",
    Act "act", Look "look",
});

/// A call about a latch, a condition, a barrier or an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Sets a latch's count.
    Set,
    /// Counts a latch down.
    CountDown,
    /// Waits for a latch.
    Wait,
    /// Notifies waiters on a condition.
    Notify,
    /// Waits on a condition.
    Sleep,
    /// Waits at a barrier.
    Arrive,
    /// Runs a barrier's action.
    Act,
    /// A leader reads which leader is on record.
    Look,
}

/// An acquisition that a caller received. All times are on [`crate::clock`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The id, which is unique in its process.
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    pub(crate) name: String,
    /// The part of the name's capacity that this grant takes.
    pub(crate) weight: u64,
    pub(crate) capacity: u64,
    pub(crate) call: u64,
    pub(crate) at: u64,
    /// The first end of the lease that the guard reported.
    pub(crate) until: u64,
    /// The lease in ns that the caller requested, or zero if the grant has no lease.
    pub(crate) lease: u64,
    /// The token, or zero if there is no token.
    pub(crate) token: u64,
    /// Whether the caller registered a callback for a loss.
    pub(crate) is_watched: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A call for a name that may stay taken after its holder has gone, for at least `keeps` ns
    /// after the grant. The event is written before the call, because the process may be killed
    /// during the call.
    Asks {
        name: String,
        call: u64,
        keeps: u64,
    },
    Granted(Grant),
    /// The guard reported that the lock is held until this time.
    Seen {
        id: u64,
        at: u64,
        until: u64,
    },
    /// The holder begins to release. `until` is zero if the guard reported a loss.
    Leaving {
        id: u64,
        at: u64,
        until: u64,
    },
    Left {
        id: u64,
        at: u64,
        outcome: Outcome,
    },
    /// The callback for a loss ran.
    Lost {
        id: u64,
        at: u64,
    },
    /// The guard reported a change: others wait, or nobody waits. Or the guard's callback for new
    /// waiters ran.
    Heard {
        id: u64,
        at: u64,
        is_wanted: bool,
    },
    /// A call ended without a grant. `bound` is the time in ns within which the call should have
    /// ended.
    Missed {
        kind: Kind,
        name: String,
        call: u64,
        at: u64,
        bound: u64,
        outcome: Outcome,
    },
    /// A step with a latch, a condition, a barrier or an election. `number` is a latch's count, the
    /// number of waiters that a notification woke, or an index at a barrier. For an election, it is
    /// 1 if another leader is on record.
    Stepped {
        step: Step,
        name: String,
        call: u64,
        at: u64,
        bound: u64,
        number: u64,
        outcome: Outcome,
    },
    /// A rule inside a process was violated.
    Odd {
        at: u64,
        text: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asks { name, call, keeps } => write!(f, "A {name} {call} {keeps}"),
            Self::Granted(it) => write!(
                f,
                "G {} {} {} {} {} {} {} {} {} {} {}",
                it.id,
                it.kind,
                it.name,
                it.weight,
                it.capacity,
                it.call,
                it.at,
                it.until,
                it.lease,
                it.token,
                u8::from(it.is_watched)
            ),
            Self::Seen { id, at, until } => write!(f, "S {id} {at} {until}"),
            Self::Leaving { id, at, until } => write!(f, "R {id} {at} {until}"),
            Self::Left { id, at, outcome } => write!(f, "D {id} {at} {outcome}"),
            Self::Lost { id, at } => write!(f, "L {id} {at}"),
            Self::Heard { id, at, is_wanted } => write!(f, "H {id} {at} {}", u8::from(*is_wanted)),
            Self::Missed { kind, name, call, at, bound, outcome } => {
                write!(f, "M {kind} {name} {call} {at} {bound} {outcome}")
            }
            Self::Stepped { step, name, call, at, bound, number, outcome } => {
                write!(f, "T {step} {name} {call} {at} {bound} {number} {outcome}")
            }
            Self::Odd { at, text } => write!(f, "O {at} {}", text.replace(['\n', '\r'], " ")),
        }
    }
}

impl FromStr for Event {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let mut fields = line.split(' ');
        let letter = fields.next().ok_or(())?;
        if letter == "O" {
            let (_, rest) = line.split_once(' ').ok_or(())?;
            let (at, text) = rest.split_once(' ').ok_or(())?;
            return Ok(Self::Odd { at: at.parse().map_err(drop)?, text: text.to_owned() });
        }
        let fields = &mut fields;
        let event = match letter {
            "A" => Self::Asks { name: next(fields)?, call: next(fields)?, keeps: next(fields)? },
            "G" => Self::Granted(Grant {
                id: next(fields)?,
                kind: next(fields)?,
                name: next(fields)?,
                weight: next(fields)?,
                capacity: next(fields)?,
                call: next(fields)?,
                at: next(fields)?,
                until: next(fields)?,
                lease: next(fields)?,
                token: next(fields)?,
                is_watched: next::<u8>(fields)? == 1,
            }),
            "S" => Self::Seen { id: next(fields)?, at: next(fields)?, until: next(fields)? },
            "R" => Self::Leaving { id: next(fields)?, at: next(fields)?, until: next(fields)? },
            "D" => Self::Left { id: next(fields)?, at: next(fields)?, outcome: next(fields)? },
            "L" => Self::Lost { id: next(fields)?, at: next(fields)? },
            "H" => Self::Heard {
                id: next(fields)?,
                at: next(fields)?,
                is_wanted: next::<u8>(fields)? == 1,
            },
            "M" => Self::Missed {
                kind: next(fields)?,
                name: next(fields)?,
                call: next(fields)?,
                at: next(fields)?,
                bound: next(fields)?,
                outcome: next(fields)?,
            },
            "T" => Self::Stepped {
                step: next(fields)?,
                name: next(fields)?,
                call: next(fields)?,
                at: next(fields)?,
                bound: next(fields)?,
                number: next(fields)?,
                outcome: next(fields)?,
            },
            _ => return Err(()),
        };
        fields.next().is_none().then_some(event).ok_or(())
    }
}

fn next<T: FromStr>(fields: &mut std::str::Split<'_, char>) -> Result<T, ()> {
    fields.next().ok_or(())?.parse().map_err(drop)
}

/// The file of a worker. The worker's threads share the file.
#[derive(Debug)]
pub(crate) struct Log(File);

impl Log {
    pub(crate) fn create(path: &str) -> io::Result<Self> {
        File::options().append(true).create(true).open(path).map(Self)
    }

    /// # Panics
    ///
    /// The disk is full: without its history, a run proves nothing.
    pub(crate) fn write(&self, event: &Event) {
        // The file is open for appending and each line is one write, so lines of different threads
        // do not mix.
        if let Err(error) = (&self.0).write_all(format!("{event}\n").as_bytes()) {
            panic!("the history cannot be written: {error}");
        }
    }
}

/// The operations of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) number: u32,
    pub(crate) events: Vec<Event>,
    /// The time at which the nemesis killed the process.
    pub(crate) killed: Option<u64>,
}

/// All kinds of faults, for `--faults`.
pub(crate) const FAULTS: [&str; 25] = [
    "kill",
    "stop",
    "stop beyond a lease",
    "server stopped",
    "CLIENT PAUSE",
    "CLIENT KILL",
    "SCRIPT FLUSH",
    "memory full",
    "command denied",
    LEASES_SHORTER,
    LEASES_LONGER,
    "restart with data",
    "restart without data",
    "FLUSHALL",
    "cut",
    "messages cut",
    "delay",
    "network frozen",
    "connections refused",
    "byte by byte",
    "replies and requests lost or late",
    "scripts late",
    "failover on command",
    "master killed",
    "slot moved",
];

/// A fault that the nemesis did not cause: the machine was too busy to run the processes.
pub(crate) const MACHINE_STILL: &str = "machine stood still";

/// A fault whose only effect is that leases at the server end early.
pub(crate) const LEASES_SHORTER: &str = "leases shorter";

/// A fault that makes leases at the server end late.
pub(crate) const LEASES_LONGER: &str = "leases longer";

/// Faults during which a process behind the faulty network gets no reply.
pub(crate) const OUTAGES: [&str; 2] = ["network frozen", "connections refused"];

/// A fault. Usually the nemesis has caused the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: String,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The process that the fault affected. `None` if it affected the server or all processes.
    pub(crate) process: Option<u32>,
    /// Whether the server may have lost data.
    pub(crate) forgets: bool,
}

impl Fault {
    /// Whether the fault may also have lost counts and tokens.
    pub(crate) fn forgets_counts(&self) -> bool {
        self.forgets && self.kind != LEASES_SHORTER
    }
}

/// A round: the time between two quiet moments, at which nothing is held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) processes: Vec<Process>,
    pub(crate) faults: Vec<Fault>,
}

impl Round {
    /// Returns the time for which this process stood still between these times, alone or with the
    /// machine.
    pub(crate) fn stopped(&self, process: u32, from: u64, to: u64) -> u64 {
        let faults = self.faults.iter();
        let is_stop = |fault: &&Fault| match fault.process {
            Some(stopped) => fault.kind.starts_with("stop") && stopped == process,
            None => fault.kind == MACHINE_STILL,
        };
        faults
            .filter(is_stop)
            .map(|fault| fault.to.min(to).saturating_sub(fault.from.max(from)))
            .sum()
    }
}

/// Reads a worker's file. Ignores an incomplete last line, which a killed process may leave.
pub(crate) fn parse(number: u32, text: &str, killed: Option<u64>) -> Result<Process, String> {
    let mut events = Vec::new();
    let mut lines = text.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        match line.trim_end().parse() {
            Ok(event) => events.push(event),
            Err(()) if lines.peek().is_none() && !line.ends_with('\n') => {}
            Err(()) => {
                return Err(format!("process {number} wrote a line that is no event: {line}"));
            }
        }
    }
    Ok(Process { number, events, killed })
}

/// Writes a round to a folder, for [`load`].
pub(crate) fn save(round: &Round, folder: &Path) -> io::Result<()> {
    let mut about = BufWriter::new(File::create(folder.join("round"))?);
    for fault in &round.faults {
        let Fault { kind, from, to, process, forgets } = fault;
        let process = process.map_or_else(|| "-".to_owned(), |it| it.to_string());
        writeln!(about, "fault {from} {to} {process} {forgets} {kind}")?;
    }
    for process in &round.processes {
        let killed = process.killed.map_or_else(|| "-".to_owned(), |it| it.to_string());
        writeln!(about, "process {} {killed}", process.number)?;
        let path = folder.join(format!("process-{}", process.number));
        let mut file = BufWriter::new(File::create(path)?);
        for event in &process.events {
            writeln!(file, "{event}")?;
        }
        file.flush()?;
    }
    about.flush()
}

/// Reads a round that [`save`] wrote.
pub(crate) fn load(folder: &Path) -> Result<Round, String> {
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let mut round = Round::default();
    for line in read("round")?.lines() {
        let fields: Vec<_> = line.splitn(6, ' ').collect();
        let wrong = |_| format!("no line of a round: {line}");
        match fields[..] {
            ["fault", from, to, process, forgets, kind] => round.faults.push(Fault {
                kind: kind.to_owned(),
                from: from.parse().map_err(wrong)?,
                to: to.parse().map_err(wrong)?,
                process: process.parse().ok(),
                forgets: forgets == "true",
            }),
            ["process", number, killed] => {
                let number = number.parse().map_err(wrong)?;
                let text = read(&format!("process-{number}"))?;
                round.processes.push(parse(number, &text, killed.parse().ok())?);
            }
            _ => return Err(format!("no line of a round: {line}")),
        }
    }
    Ok(round)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let events = [
            Event::Granted(Grant {
                id: 1,
                kind: Kind::ReadWrite,
                name: "r1-a".to_owned(),
                weight: 2,
                capacity: 3,
                call: 4,
                at: 5,
                until: 6,
                lease: 7,
                token: 8,
                is_watched: true,
            }),
            Event::Asks { name: "r1-a".to_owned(), call: 4, keeps: 5 },
            Event::Leaving { id: 1, at: 2, until: 0 },
            Event::Left { id: 1, at: 2, outcome: Outcome::Lost },
            Event::Heard { id: 1, at: 2, is_wanted: true },
            Event::Odd { at: 3, text: "two words".to_owned() },
        ];
        for event in events {
            assert_eq!(event.to_string().parse(), Ok(event));
        }
        assert_eq!("G 1 reentrant".parse::<Event>(), Err(()));
        assert_eq!("L 1 2 3".parse::<Event>(), Err(()));
    }

    #[test]
    fn a_round_is_loaded_as_it_was_saved() {
        let events = vec![Event::Lost { id: 1, at: 2 }];
        let fault = |process| Fault {
            kind: "CLIENT KILL".to_owned(),
            from: 1,
            to: 2,
            process,
            forgets: process.is_none(),
        };
        let round = Round {
            processes: vec![
                Process { number: 1, events, killed: Some(7) },
                Process { number: 2, ..Process::default() },
            ],
            faults: vec![fault(Some(1)), fault(None)],
        };
        let folder = tempfile::tempdir().unwrap();
        save(&round, folder.path()).unwrap();
        assert_eq!(load(folder.path()).unwrap(), round);
    }

    #[test]
    fn a_process_stands_still_alone_or_with_the_machine() {
        let fault = |kind: &str, from, process| Fault {
            kind: kind.to_owned(),
            from,
            to: from + 10,
            process,
            forgets: false,
        };
        let faults =
            vec![fault("stop", 0, Some(1)), fault(MACHINE_STILL, 20, None), fault("cut", 40, None)];
        let round = Round { processes: Vec::new(), faults };
        assert_eq!([1, 2].map(|process| round.stopped(process, 5, 100)), [15, 10]);
    }

    #[test]
    fn only_the_last_line_may_be_cut_short() {
        assert_eq!(parse(1, "L 1 2\nL 2", None).unwrap().events.len(), 1);
        assert!(parse(1, "L 1\nL 2 3\n", None).is_err());
    }
}
