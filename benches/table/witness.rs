//! The last holder, and whether too many are inside now: some bytes that all processes share.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process;

/// One thread's view. If several may be inside, each takes one of so many places: a file that it
/// locks. If only one may, a lock would hide the error to be seen.
pub(crate) struct Witness {
    places: Vec<File>,
    /// This thread's place; none: the thread is outside, or one too many.
    at: Option<usize>,
}

/// Others may change places while one looks. More looks than this would wait until one that is too
/// many has left.
const LOOKS: usize = 3;

impl Witness {
    /// New files, in memory where there is such a folder.
    pub(crate) fn create(number: usize, places: usize) -> PathBuf {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_owned() } else { env::temp_dir() };
        let path = folder.join(format!("redlatch-bench-{}-{number}", process::id()));
        for place in 0..places {
            fs::write(path.with_extension(place.to_string()), [0; 8]).unwrap();
        }
        path
    }

    /// Processes that have them open keep them.
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

    /// This thread is inside. Was it so before it, too, in its place?
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

    /// This thread leaves. Was it in a place of its own?
    pub(crate) fn leave(&mut self, thread: u64) -> bool {
        let Some(place) = self.at.take().map(|at| &self.places[at]) else { return false };
        let alone = last(place) == thread;
        if self.places.len() > 1 {
            place.unlock().unwrap();
        }
        alone
    }
}

/// The last thread that entered it.
fn last(place: &File) -> u64 {
    let mut bytes = [0; 8];
    place.read_exact_at(&mut bytes, 0).unwrap();
    u64::from_ne_bytes(bytes)
}
