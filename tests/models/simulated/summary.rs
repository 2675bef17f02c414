//! The cases that have occurred in histories.

use std::collections::BTreeMap;

/// How many times each case has occurred. A case that never occurs is not tested.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summary(pub(crate) BTreeMap<&'static str, i64>);

impl Summary {
    pub(crate) fn add(&mut self, what: &'static str, more: i64) {
        *self.0.entry(what).or_default() += more;
    }

    pub(crate) fn most(&mut self, what: &'static str, value: i64) {
        let most = self.0.entry(what).or_default();
        *most = value.max(*most);
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        for (what, value) in &other.0 {
            if what.starts_with("longest") {
                self.most(what, *value);
            } else {
                self.add(what, *value);
            }
        }
    }
}
