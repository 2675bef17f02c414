//! A resumable upload, like those of tus. The lock of an upload belongs to the request that writes
//! to it. If a client's connection breaks, the client sends a new request, perhaps to another
//! server of the pool. The old request, which still waits for bytes, is notified of the new
//! request, stores its bytes, and releases the lock.

use std::io::{self, Write as _};
use std::sync::mpsc;
use std::time::Duration;
use std::{env, error, fs};

use redlatch::Client;

fn main() -> Result<(), Box<dyn error::Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let (file, bytes) = ("upload.part", env::args().nth(1).unwrap_or_default());
    let lock = Client::connect(&url)?.reentrant_lock(&format!("upload:{file}")).with_wanted();
    let guard = lock.lock()?; // waits until the old request has left
    let mut upload = fs::File::options().create(true).append(true).open(file)?;
    println!("goes on at byte {}", upload.metadata()?.len());
    io::stdout().flush()?;
    let (news, wanted) = mpsc::channel();
    guard.on_wanted(move || {
        let _ = news.send(());
    });
    for byte in bytes.bytes() {
        // An error if the lock may be lost: then another request may already write.
        guard.check(Duration::from_secs(1))?;
        upload.write_all(&[byte])?;
        // The next byte comes after a while, or never.
        if wanted.recv_timeout(Duration::from_millis(50)).is_ok() {
            upload.sync_all()?;
            println!("leaves the upload to a newer request");
            break;
        }
    }
    Ok(guard.unlock()?)
}
