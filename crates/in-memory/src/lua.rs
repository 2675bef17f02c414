//! Runs the scripts with Lua 5.1, as Redis does.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use mlua::{BString, Function, Lua, LuaOptions, StdLib, Value as LuaValue, Variadic};
use redis::Value;
use redlatch_client::sync::Mutex;

use crate::commands::Step;
use crate::machine::Keys;
use crate::peers::Peers;
use crate::resp::refusal;
use crate::store::Store;

/// Redis's keys, and the scripts that work on them.
pub struct Scripts {
    data: Arc<Mutex<Data>>,
    lua: Lua,
    run_ten: Function,
    run_any: Function,
    known: BTreeMap<String, Function>,
}

/// The data that a script's commands work on.
#[derive(Default)]
struct Data {
    store: Store,
    /// The server's connections, while a script runs.
    peers: Peers,
    /// The server's time in µs when the script began. The scripts see this time until they end.
    now: i64,
}

impl Scripts {
    /// Makes a server without keys and scripts. Returns an error if Lua cannot allocate memory.
    pub fn new() -> Result<Self, String> {
        let data = Arc::new(Mutex::new(Data::default()));
        let in_lua = || {
            let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
            let lua = Lua::new_with(libraries, LuaOptions::default())?;
            let own = Arc::clone(&data);
            let of_name = lua.create_function(move |lua, name: BString| {
                let with_name = || (name.clone(), Arc::clone(&own));
                let (name, data) = with_name();
                let one = lua.create_function(move |lua, a: BString| {
                    to_lua(lua, data.lock().run(&[&name, &a]))
                })?;
                let (name, data) = with_name();
                let two = lua.create_function(move |lua, (a, b): (BString, BString)| {
                    to_lua(lua, data.lock().run(&[&name, &a, &b]))
                })?;
                let (name, data) = with_name();
                let three =
                    lua.create_function(move |lua, (a, b, c): (BString, BString, BString)| {
                        to_lua(lua, data.lock().run(&[&name, &a, &b, &c]))
                    })?;
                Ok((one, two, three))
            })?;
            let own = Arc::clone(&data);
            let any = lua.create_function(move |lua, parts: Variadic<LuaValue>| {
                to_lua(lua, own.lock().run_any(&parts))
            })?;
            let prelude = lua.load(include_str!("prelude.lua")).set_name("=prelude");
            let (run_ten, run_any) = prelude.call((of_name, any))?;
            Ok((lua, run_ten, run_any))
        };
        let made: mlua::Result<(Lua, Function, Function)> = in_lua();
        let (lua, run_ten, run_any) = made.map_err(|error| error.to_string())?;
        Ok(Self { data, lua, run_ten, run_any, known: BTreeMap::new() })
    }

    fn call(&self, script: &Function, keys: usize, arguments: &[&[u8]]) -> mlua::Result<Value> {
        // Arguments that are UTF-8 can be passed faster.
        let mut ten = [None; 10];
        let mut fits = arguments.len() <= ten.len();
        for (place, argument) in ten.iter_mut().zip(arguments) {
            *place = str::from_utf8(argument).ok();
            fits &= place.is_some();
        }
        let (done, result): (bool, LuaValue) = if fits {
            let [a, b, c, d, e, f, g, h, i, j] = ten;
            self.run_ten.call((script, keys, a, b, c, d, e, f, g, h, i, j))?
        } else {
            let text = |it: &&[u8]| self.lua.create_string(it);
            let arguments = arguments.iter().map(text).collect::<mlua::Result<Variadic<_>>>()?;
            self.run_any.call((script, keys, arguments))?
        };
        if done { of_lua(&result) } else { failure(&result) }
    }
}

impl Data {
    fn run(&mut self, command: &[&[u8]]) -> Value {
        let Self { store, peers, now } = self;
        Step { store, peers, now: *now }.run(command)
    }

    fn run_any(&mut self, parts: &[LuaValue]) -> Value {
        let last = parts.iter().rposition(|part| !matches!(part, LuaValue::Nil));
        let texts = parts[..last.map_or(0, |last| last + 1)].iter().map(|part| match part {
            LuaValue::String(text) => Some(text.as_bytes().to_vec()),
            LuaValue::Number(number) => Some(number_text(*number).into_bytes()),
            LuaValue::Integer(number) => Some(number.to_string().into_bytes()),
            _ => None,
        });
        let Some(texts) = texts.collect::<Option<Vec<_>>>() else {
            return refusal("ERR Lua redis lib command arguments must be strings or integers");
        };
        self.run(&texts.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }
}

impl Keys for Scripts {
    fn command(&mut self, peers: &mut Peers, now: i64, command: &[&[u8]]) -> Value {
        Step { store: &mut self.data.lock().store, peers, now }.run(command)
    }

    fn learn(&mut self, sha: &str, code: &[u8]) -> Result<(), Value> {
        let script = self.lua.load(code).set_name("=user_script").into_function();
        let wrong = |error| refusal(&format!("ERR Error compiling script: {error}"));
        self.known.insert(sha.to_owned(), script.map_err(wrong)?);
        Ok(())
    }

    fn script(
        &mut self,
        peers: &mut Peers,
        now: i64,
        sha: &str,
        keys: usize,
        arguments: &[&[u8]],
    ) -> Value {
        let Some(script) = self.known.get(sha) else {
            return refusal("NOSCRIPT No matching script. Please use EVAL.");
        };
        let mut data = self.data.lock();
        data.now = now;
        std::mem::swap(&mut data.peers, peers);
        drop(data);
        let reply = self.call(script, keys, arguments);
        std::mem::swap(&mut self.data.lock().peers, peers);
        reply.unwrap_or_else(|error| refusal(&format!("ERR {error}")))
    }

    fn ends(&self, key: &[u8]) -> Option<i64> {
        self.data.lock().store.ends(key).map(|millis| millis.saturating_mul(1_000) + 999)
    }
}

impl fmt::Debug for Scripts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scripts").field("known", &self.known.len()).finish_non_exhaustive()
    }
}

/// Converts a command's reply to the value that Redis gives a script.
fn to_lua(lua: &Lua, reply: Value) -> mlua::Result<LuaValue> {
    let only = |field: &str, text: &str| {
        let table = lua.create_table_with_capacity(0, 1)?;
        table.raw_set(field, text)?;
        Ok(LuaValue::Table(table))
    };
    match reply {
        Value::Nil => Ok(LuaValue::Boolean(false)),
        Value::Int(number) => Ok(LuaValue::Number(number as f64)),
        Value::BulkString(text) => lua.create_string(text).map(LuaValue::String),
        Value::Double(number) => lua.create_string(number_text(number)).map(LuaValue::String),
        Value::Okay => only("ok", "OK"),
        Value::SimpleString(text) => only("ok", &text),
        Value::ServerError(error) => {
            only("err", &format!("{} {}", error.code(), error.details().unwrap_or_default()))
        }
        Value::Array(parts) => {
            let table = lua.create_table_with_capacity(parts.len(), 0)?;
            for (at, part) in parts.into_iter().enumerate() {
                table.raw_set(at + 1, to_lua(lua, part)?)?;
            }
            Ok(LuaValue::Table(table))
        }
        Value::Map(pairs) => {
            let parts = pairs.into_iter().flat_map(|(field, value)| [field, value]);
            to_lua(lua, Value::Array(parts.collect()))
        }
        _ => Ok(LuaValue::Nil),
    }
}

/// Converts a script's result to a reply: a number loses its fraction, and a list ends at its first
/// nil.
fn of_lua(result: &LuaValue) -> mlua::Result<Value> {
    Ok(match result {
        LuaValue::Boolean(true) => Value::Int(1),
        LuaValue::Number(number) => Value::Int(*number as i64),
        LuaValue::Integer(number) => Value::Int(*number),
        LuaValue::String(text) => Value::BulkString(text.as_bytes().to_vec()),
        LuaValue::Table(table) => {
            if let LuaValue::String(text) = table.raw_get("err")? {
                return Ok(refusal(&text.to_string_lossy()));
            }
            if let LuaValue::String(text) = table.raw_get("ok")? {
                return Ok(Value::SimpleString(text.to_string_lossy()));
            }
            let mut parts = Vec::new();
            loop {
                match table.raw_get(parts.len() + 1)? {
                    LuaValue::Nil => break,
                    part => parts.push(of_lua(&part)?),
                }
            }
            Value::Array(parts)
        }
        _ => Value::Nil,
    })
}

/// The reply to a script that ended with this error.
fn failure(error: &LuaValue) -> mlua::Result<Value> {
    Ok(match error {
        LuaValue::Table(_) => match of_lua(error)? {
            refused @ Value::ServerError(_) => refused,
            _ => refusal("ERR the script ended with a table"),
        },
        LuaValue::String(text) => refusal(&format!("ERR {}", text.to_string_lossy())),
        LuaValue::Error(error) => refusal(&format!("ERR {error}")),
        other => refusal(&format!("ERR {other:?}")),
    })
}

/// Writes whole numbers and halves as C's `%.17g` does. Writes other numbers, which the scripts do
/// not use, as Rust does.
fn number_text(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number.fract() == 0.0 && number.abs() < 1e17 {
        return (number as i64).to_string();
    }
    number.to_string()
}
