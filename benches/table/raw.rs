//! The minimum cost of a lock: its two scripts on a separate connection, encoded in advance.

use redis::io::tcp::TcpSettings;
use redis::{Cmd, Connection, ConnectionLike, IntoConnectionInfo, Script, Value};

/// An owner of the same length as a client's owners, so that the commands have the usual length.
const OWNER: &str = "0b5a9d2e-1111-8111-8111-111111111111:12345";

/// A lock's acquire and release, without any other work.
pub(crate) struct RawPair {
    connection: Connection,
    acquire: Vec<u8>,
    release: Vec<u8>,
}

impl RawPair {
    pub(crate) fn connect(url: &str, name: &str) -> Self {
        let mut connection = connect(url);
        let keys =
            [name, &format!("redlatch_queue:{{{name}}}"), &format!("redlatch_window:{{{name}}}")];
        let channel = format!("redisson_lock__channel:{{{name}}}");
        let mut call = |code: &str, args: &[&str]| {
            let script = Script::new(code);
            script.prepare_invoke().load(&mut connection).unwrap();
            let mut call = Cmd::new();
            call.arg("EVALSHA").arg(script.get_hash()).arg(keys.len()).arg(&keys);
            call.arg(args).get_packed_command()
        };
        let acquire = call(
            concat!(
                include_str!("../../lua/lock/free.lua"),
                include_str!("../../lua/lock/queue_up.lua"),
                include_str!("../../lua/prelude.lua"),
                include_str!("../../lua/hand_off.lua"),
                include_str!("../../lua/lock/holder.lua"),
                include_str!("../../lua/lock/owner.lua"),
                include_str!("../../lua/lock/acquire.lua")
            ),
            &["30000", OWNER],
        );
        let release = call(
            concat!(
                include_str!("../../lua/lock/hand_over.lua"),
                include_str!("../../lua/prelude.lua"),
                include_str!("../../lua/hand_off.lua"),
                include_str!("../../lua/lock/holder.lua"),
                include_str!("../../lua/lock/release.lua")
            ),
            &[OWNER, &channel],
        );
        Self { connection, acquire, release }
    }

    pub(crate) fn acquire(&mut self) {
        let reply = self.connection.req_packed_command(&self.acquire).unwrap();
        assert_eq!(reply, Value::Int(0), "the raw pair's name is its own");
    }

    pub(crate) fn release(&mut self) {
        let reply = self.connection.req_packed_command(&self.release).unwrap();
        assert_ne!(reply, Value::Nil, "the raw pair's name is its own");
    }
}

/// Connects with TCP_NODELAY, as redlatch does.
pub(crate) fn connect(url: &str) -> Connection {
    let info = url.into_connection_info().unwrap();
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    redis::Client::open(info).unwrap().get_connection().unwrap()
}
