//! A pair: one read-write lock in one client. A pair has the site of the readers' shared hold and
//! the site of the writer's hold. The two sites share an order (`order/mod.rs`), with one queue for
//! readers and writers and one leadership.

use std::sync::Arc;

use crate::lease::Renewal;
use crate::name::Name;
use crate::runtime::{Core, Member};
use crate::scripts::Mode;
use crate::site::{Gate, Site};
use crate::snapshot::Held;
use crate::waiting::QueueSite;

pub(in crate::lock) struct Pair {
    core: Arc<Core>,
    name: Name,
    pub(in crate::lock) read: Arc<Site>,
    pub(in crate::lock) write: Arc<Site>,
}

impl Pair {
    /// Returns the pair of a name, which all handles of the name share.
    pub(in crate::lock) fn of(core: &Arc<Core>, name: &str) -> Arc<Self> {
        core.members.of::<Self>().get(&core.key(name), |key| {
            let name = core.name(key);
            let gate = Gate::new(Mode::Write);
            let read = Arc::new(Site::behind(core, &name, gate.for_mode(Mode::Read)));
            let write = Arc::new(Site::behind(core, &name, gate));
            Self { core: Arc::clone(core), read, write, name }
        })
    }

    pub(in crate::lock) fn site(&self, mode: Mode) -> &Arc<Site> {
        if mode == Mode::Write { &self.write } else { &self.read }
    }
}

impl Member for Pair {
    fn name(&self) -> &Name {
        &self.name
    }

    fn end(self: Arc<Self>) {
        self.write.nudge();
        Member::end(Arc::clone(&self.read));
        Member::end(Arc::clone(&self.write));
    }

    fn renew_now(self: Arc<Self>) -> Vec<Renewal> {
        let sites = [&self.read, &self.write].map(Arc::clone);
        sites.into_iter().flat_map(Member::renew_now).collect()
    }

    fn told_wanted(&self, owner: u64, is_wanted: bool, at: u64) {
        self.read.told_wanted(owner, is_wanted, at);
        self.write.told_wanted(owner, is_wanted, at);
    }

    #[cfg(feature = "in-memory")]
    fn age(self: Arc<Self>, by: u64) -> Vec<Renewal> {
        let sites = [&self.read, &self.write].map(Arc::clone);
        sites.into_iter().flat_map(|site| Member::age(site, by)).collect()
    }

    fn held(&self) -> Vec<Held> {
        [self.read.held(), self.write.held()].concat()
    }

    fn has_owners(&self) -> bool {
        true
    }

    fn give_up_owner(&self, owner: &str) {
        let writes = owner.ends_with(Mode::Write.suffix());
        let mode = if writes { Mode::Write } else { Mode::Read };
        self.site(mode).give_up_owner(owner);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.core.members.of::<Self>().forget(&self.name);
    }
}
