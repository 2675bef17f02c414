//! Finds a server program on `PATH` or from an earlier download, or downloads one now.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::{ServerError, provision};

/// A server program that has answered `--version`.
#[derive(Clone, Debug)]
pub(crate) struct Binary {
    pub(crate) path: PathBuf,
}

impl Binary {
    /// Returns the program for this process. The program is searched, and if necessary downloaded,
    /// only once.
    pub(crate) fn find() -> Result<Self, ServerError> {
        static FOUND: OnceLock<Result<Binary, ServerError>> = OnceLock::new();
        let find = || find_in(env::var_os("PATH").as_deref(), &target_dir());
        FOUND.get_or_init(find).clone()
    }

    /// Returns the program at this path, if it runs.
    pub(crate) fn checked(path: PathBuf) -> Result<Self, String> {
        let output = Command::new(&path)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{} does not start: {error}", path.display()))?;
        if !output.status.success() {
            return Err(format!("{} --version: {}", path.display(), output.status));
        }
        Ok(Self { path })
    }
}

pub(crate) fn find_in(
    path: Option<&std::ffi::OsStr>,
    target: &Path,
) -> Result<Binary, ServerError> {
    for folder in path.map(env::split_paths).into_iter().flatten() {
        for name in ["redis-server", "valkey-server"] {
            let acquisition = folder.join(name);
            if acquisition.is_file()
                && let Ok(binary) = Binary::checked(acquisition)
            {
                return Ok(binary);
            }
        }
    }
    provision::kept_or_new(&target.join("redis-server"))
}

/// Returns Cargo's target folder, so that `cargo clean` also removes the download.
fn target_dir() -> PathBuf {
    let marked = env::current_exe().ok().and_then(|exe| {
        exe.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file()).map(Path::to_path_buf)
    });
    marked
        .or_else(|| env::var_os("CARGO_TARGET_DIR").map(PathBuf::from))
        .unwrap_or_else(|| workspace_root().join("target"))
}

fn workspace_root() -> PathBuf {
    let testkit = Path::new(env!("CARGO_MANIFEST_DIR"));
    testkit.parent().unwrap_or(testkit).to_path_buf()
}
