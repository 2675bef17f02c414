//! The arrivals and the faults, which are random, but are chosen before a history begins.

use super::clients::{CLOCK_OFFSET, Client, Phase, REDISSON_WAIT, WATCHDOG, Waiter};
use super::simulation::{Event, Simulation};

const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;

impl Simulation<'_> {
    pub(crate) fn plan(&mut self) {
        let ours = self.random.one_of(&[(0, 3), (1, 3), (2, 3)]);
        let redissons = self.random.one_of(&[(i64::from(ours == 0), 3), (1, 2), (1, 3)]);
        for i in 0..ours + redissons {
            let is_ours = i < ours;
            let offset = self.random.between(-CLOCK_OFFSET, CLOCK_OFFSET);
            let name = if is_ours { i } else { i - ours }.to_string();
            let mut client = Client::new(&name, is_ours, if is_ours { 0 } else { offset });
            client.is_old = !is_ours && self.random.percent(40);
            self.world.clients.push(client);
        }
        let span = self.random.one_of(&[
            (50, SECOND),
            (5 * SECOND, 30 * SECOND),
            (2 * MINUTE, 15 * MINUTE),
        ]);
        let works: &[(i64, i64)] = match self.random.between(0, 3) {
            0 => &[(1, 30)],
            1 => &[(1, 300), (500, 8 * SECOND)],
            2 => &[(1, 30), (5 * SECOND, 40 * SECOND)],
            _ => &[(1, 30), (100, 3 * SECOND), (MINUTE, 7 * MINUTE)],
        };
        for _ in 0..self.random.between(3, 18) {
            let client = self.random.between(0, ours + redissons - 1) as usize;
            let waiter = self.add_waiter(client, works);
            self.within(span, Event::Arrive(waiter));
        }
        let peaceful = self.random.percent(25);
        for client in 0..self.world.clients.len() {
            let is_ours = self.world.clients[client].is_ours;
            if !peaceful && self.random.percent(25) {
                self.within(span + MINUTE, Event::Die(client));
            } else if !peaceful && is_ours && self.random.percent(50) {
                let time = self.random.one_of(&[(100, 4 * SECOND), (8 * SECOND, MINUTE)]);
                self.within(span + MINUTE, Event::Stop(client, time));
            }
            if is_ours && self.random.percent(30) {
                let time = self.random.between(100, 3 * SECOND);
                self.within(span, Event::Deaf(client, time));
            }
            while is_ours && self.random.percent(40) {
                let waiter = self.add_waiter(client, works);
                self.world.waiters[waiter].tries = true;
                self.within(span, Event::Try(waiter));
            }
        }
        if self.random.percent(30) {
            self.store.set_monitored();
        }
        if self.random.percent(6) {
            self.within(span, Event::DeleteKeys);
        }
        if self.random.percent(10) {
            self.within(span, Event::ForceUnlock);
        }
    }

    fn within(&mut self, span: i64, event: Event) {
        let at = self.now + self.random.between(0, span);
        self.at(at, event);
    }

    pub(crate) fn add_waiter(&mut self, client: usize, works: &[(i64, i64)]) -> usize {
        let is_ours = self.world.clients[client].is_ours;
        let random = &mut self.random;
        let timed = random.percent(40);
        let wait = random.one_of(&[(SECOND, 20 * SECOND), (MINUTE, 5 * MINUTE)]);
        let watched = random.percent(50);
        let lease =
            random.one_of(&[(500, 3 * SECOND), (5 * SECOND, MINUTE), (5 * MINUTE, 15 * MINUTE)]);
        self.world.waiters.push(Waiter {
            owner: String::new(),
            client,
            phase: Phase::Coming,
            interrupted: false,
            wait: if timed || is_ours { wait } else { REDISSON_WAIT },
            deadline: timed.then_some(wait),
            lease: if watched { WATCHDOG } else { lease },
            watched,
            work: random.one_of(works),
            registered: None,
            tries: false,
            company: Vec::new(),
            is_company: false,
            is_asking: false,
            asked: 0,
            sleeps: false,
            by_redisson: false,
            listens: false,
            refused: 0,
            asks_soon: false,
            rank: None,
            served: false,
            dropped: false,
            came_back: false,
            place_lost: false,
            base: 0,
        });
        self.world.waiters.len() - 1
    }
}
