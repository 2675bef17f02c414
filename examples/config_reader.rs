//! A configuration in two files that belong together. Many processes read it at the same time, and
//! no process reads while another writes. `config_reader` reads, and `config_reader VALUE` writes.

use std::time::Duration;
use std::{env, error, fs};

use redlatch::{Client, NotTaken, Taken};

fn main() -> Result<(), Box<dyn error::Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let config = Client::connect(&url)?.read_write_lock("config");
    if let Some(value) = env::args().nth(1) {
        let guard = config.writer().lock()?; // waits for the readers, and keeps new readers out
        fs::write("one.conf", &value)?;
        fs::write("two.conf", &value)?;
        guard.unlock()?;
        return Ok(());
    }
    match config.reader().try_lock_for(Duration::from_secs(5))? {
        Taken(_guard) => {
            let (one, two) = (fs::read_to_string("one.conf")?, fs::read_to_string("two.conf")?);
            println!("{one}, {two}");
            Ok(())
        }
        NotTaken => Err("a writer has the configuration".into()),
    }
}
