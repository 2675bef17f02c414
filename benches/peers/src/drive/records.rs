//! The file in which the driver records its grants.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

/// The records of grants, which the threads share.
#[derive(Clone)]
pub(crate) struct Records {
    file: Arc<File>,
}

impl Records {
    pub(crate) fn create(path: &str) -> Self {
        Self { file: Arc::new(File::create(path).unwrap()) }
    }

    pub(crate) fn write_now(&self, record: [u64; 4]) {
        (&*self.file).write_all(&bytes(record)).unwrap();
    }

    /// Returns the records of one thread, which are written when the thread ends.
    pub(crate) fn of_thread(&self) -> ThreadRecords {
        ThreadRecords { all: self.clone(), bytes: Vec::new() }
    }
}

pub(crate) struct ThreadRecords {
    all: Records,
    bytes: Vec<u8>,
}

impl ThreadRecords {
    pub(crate) fn push(&mut self, record: [u64; 4]) {
        self.bytes.extend(bytes(record));
    }
}

impl Drop for ThreadRecords {
    fn drop(&mut self) {
        let _ = (&*self.all.file).write_all(&self.bytes);
    }
}

fn bytes(record: [u64; 4]) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (to, value) in bytes.chunks_exact_mut(8).zip(record) {
        to.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}
