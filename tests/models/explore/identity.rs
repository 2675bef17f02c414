//! Decides which states are treated as the same. Such states differ only in their clocks, or in the
//! names of processes of the same kind.
//!
//! The numbers in the library's state machine are private. But a hasher receives all of them, and
//! each kind of number has its own range. For the processes' times, the hasher uses the distance
//! from now. For the server's times, it uses the distance from the server's present time. For
//! tokens and for the server's old times, it uses only their order. Times of a process that are
//! older than [`OLD`] are treated as equal, because no lease and no pause is that long.

use std::hash::{Hash, Hasher};

use super::process::MS;
use super::world::{OWN, SERVER, TOKENS, World};

/// The age in ms from which times are treated as equal.
const OLD: u64 = 8_000;

/// A hasher that collects all numbers, and keeps the numbers of which only the order matters.
struct Ranks<'a> {
    world: &'a World,
    seen: Vec<u64>,
}

struct Named<'a> {
    ranks: &'a Ranks<'a>,
    names: &'a [u16],
    state: u64,
}

impl Ranks<'_> {
    fn is_ranked(&self, number: u64) -> bool {
        number >= TOKENS / 2 || number >= SERVER / 2 && number + OLD <= self.world.server.now as u64
    }
}

impl Hasher for Ranks<'_> {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, number: u64) {
        if self.is_ranked(number) {
            self.seen.push(number);
        }
    }

    fn write_i64(&mut self, number: i64) {
        self.write_u64(u64::try_from(number).unwrap_or(0));
    }

    fn finish(&self) -> u64 {
        0
    }
}

impl Named<'_> {
    fn add(&mut self, number: u64) {
        let mixed = (self.state ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.state = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(29);
    }

    /// Adds all items in a way that does not depend on their order.
    fn add_all<T: Hash>(&mut self, all: &[T]) {
        let each = all.iter().map(|one| {
            let mut own = Named { state: 0, ..*self };
            one.hash(&mut own);
            own.finish()
        });
        let sum = each.fold(0_u64, u64::wrapping_add);
        self.add(sum);
        self.add(all.len() as u64);
    }
}

impl Hasher for Named<'_> {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.add(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.add(number.into());
    }

    /// Only a client's number has this type.
    fn write_u16(&mut self, number: u16) {
        // The number of a dead client is increased by 8.
        let name = self.names.get(usize::from(number % 8));
        self.add(name.map_or(number, |name| name + number / 8 * 8).into());
    }

    fn write_u32(&mut self, number: u32) {
        self.add(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.add(number as u64);
    }

    fn write_i64(&mut self, number: i64) {
        match u64::try_from(number) {
            Ok(number) => self.write_u64(number),
            Err(_) => self.add(number as u64),
        }
    }

    fn write_isize(&mut self, number: isize) {
        self.add(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        let world = self.ranks.world;
        if self.ranks.is_ranked(number) {
            let rank = self.ranks.seen.binary_search(&number).unwrap_or_else(|at| at);
            self.add(1 << 32 | rank as u64);
        } else if number >= SERVER / 2 {
            self.add(number.wrapping_sub(world.server.now as u64));
        } else if number >= OWN / 2 {
            self.add(number.max(world.now - OLD * MS).wrapping_sub(world.now));
        } else {
            self.add(number);
        }
    }

    fn finish(&self) -> u64 {
        self.state ^ self.state >> 31
    }
}

impl World {
    /// Adds all values except the processes.
    fn add_shared(&self, to: &mut Named<'_>) {
        let server = &self.server;
        (server.mode, server.mode.map(|_| server.ends), server.window).hash(to);
        (&server.queue, (!server.queue.is_empty()).then_some(server.queue_ends)).hash(to);
        to.add_all(&server.holders);
        to.add_all(&server.timeouts);
        to.add_all(&server.asked);
        (server.token, server.others, self.last).hash(to);
        to.add_all(&self.late);
        (self.faults, self.java, self.broken.is_some()).hash(to);
    }

    fn see(&self, ranks: &mut Ranks<'_>) {
        let server = &self.server;
        (server.mode.map(|_| server.ends), server.window, &server.timeouts).hash(ranks);
        (&server.asked, server.token, self.last, &self.late, &self.processes).hash(ranks);
    }

    /// Returns a number that is equal for states that are treated as the same.
    pub(crate) fn identity(&self) -> u64 {
        let mut ranks = Ranks { world: self, seen: Vec::new() };
        self.see(&mut ranks);
        ranks.seen.sort_unstable();
        ranks.seen.dedup();
        let mut names: Vec<u16> = (0..self.processes.len() as u16).collect();
        let mut least = u64::MAX;
        self.each_naming(&mut names, 0, &mut |names| {
            let mut named = Named { ranks: &ranks, names, state: 1 };
            let mut order: Vec<_> = (0..names.len()).collect();
            order.sort_unstable_by_key(|at| names[*at]);
            order.iter().for_each(|at| self.processes[*at].hash(&mut named));
            self.add_shared(&mut named);
            least = least.min(named.finish());
        });
        least
    }

    /// Calls `see` for each exchange of the names of processes of the same kind.
    fn each_naming(&self, names: &mut Vec<u16>, from: usize, see: &mut impl FnMut(&[u16])) {
        if from == names.len() {
            return see(names);
        }
        for at in from..names.len() {
            if self.processes[at].writes == self.processes[from].writes {
                names.swap(from, at);
                self.each_naming(names, from + 1, see);
                names.swap(from, at);
            }
        }
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.identity());
    }
}
