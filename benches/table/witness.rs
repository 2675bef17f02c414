//! The witness: bytes that all processes share, with the last holder and the threads that hold the
//! lock now.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process;

/// One thread's access to the witness. If several threads may hold the measured lock at a time,
/// each of them takes one of the places: a file that it locks. If only one thread may hold it, no
/// file is locked, because the file's lock would hide an error of the measured lock.
pub(crate) struct Witness {
    places: Vec<File>,
    /// This thread's place. `None` if the thread does not hold the lock, or if there are too many
    /// holders.
    at: Option<usize>,
}

/// The number of passes over the places. Several are needed, because other threads may change
/// places during a pass. With more passes, a thread too many would find the place of a thread that
/// has just left.
const LOOKS: usize = 3;

impl Witness {
    /// Creates the files, in memory if there is a folder for this.
    pub(crate) fn create(number: usize, places: usize) -> PathBuf {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_owned() } else { env::temp_dir() };
        let path = folder.join(format!("redlatch-bench-{}-{number}", process::id()));
        for place in 0..places {
            fs::write(path.with_extension(place.to_string()), [0; 8]).unwrap();
        }
        path
    }

    /// Removes the files. Processes that have opened the files can still use them.
    pub(crate) fn remove(path: &Path, places: usize) {
        for place in 0..places {
            let _ = fs::remove_file(path.with_extension(place.to_string()));
        }
    }

    pub(crate) fn open(path: &str, places: usize) -> Self {
        let open = |place: usize| {
            let path = Path::new(path).with_extension(place.to_string());
            File::options().read(true).write(true).open(path).unwrap()
        };
        Self { places: (0..places).map(open).collect(), at: None }
    }

    /// Called when this thread has the lock. Returns whether this thread was also the last thread
    /// that took this place.
    pub(crate) fn enter(&mut self, thread: u64) -> bool {
        self.at = match self.places.len() {
            1 => Some(0),
            places => {
                let mut looks = (0..places).cycle().take(LOOKS * places);
                looks.find(|at| self.places[*at].try_lock().is_ok())
            }
        };
        let Some(place) = self.at.map(|at| &self.places[at]) else { return false };
        let before = last(place);
        place.write_all_at(&thread.to_ne_bytes(), 0).unwrap();
        before == thread
    }

    /// Called when this thread leaves. Returns whether this thread was alone in its place.
    pub(crate) fn leave(&mut self, thread: u64) -> bool {
        let Some(place) = self.at.take().map(|at| &self.places[at]) else { return false };
        let alone = last(place) == thread;
        if self.places.len() > 1 {
            place.unlock().unwrap();
        }
        alone
    }
}

/// Returns the last thread that entered this place.
fn last(place: &File) -> u64 {
    let mut bytes = [0; 8];
    place.read_exact_at(&mut bytes, 0).unwrap();
    u64::from_ne_bytes(bytes)
}
