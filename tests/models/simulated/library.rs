//! The library's own files that the models run. These files import only modules that exist in this
//! crate, too.

#[path = "../../../src/scripts/chain.rs"]
pub(crate) mod chain;
#[path = "../../../src/order/cohort.rs"]
pub(crate) mod cohort;
#[path = "../../../src/lease/deadline.rs"]
pub(crate) mod deadline;
#[path = "../../../src/ask/entry.rs"]
pub(crate) mod entry;
#[path = "../../../src/ask/exchanges.rs"]
pub(crate) mod exchanges;
