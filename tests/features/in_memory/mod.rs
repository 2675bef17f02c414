//! The library without a server.

mod beside;
mod each_type;
mod faults;
mod speed;
mod time;
