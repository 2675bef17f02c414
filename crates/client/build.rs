//! Sets `cfg(testkit)` for the unit tests that need their own server. In a build with shuttle, also
//! sets `cfg(models)` for the models of all interleavings. The published package lacks this file
//! and the test kit. Its other tests run without them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=testkit");
    if std::env::var_os("CARGO_CFG_SHUTTLE").is_some() {
        println!("cargo::rustc-cfg=models");
    }
}
