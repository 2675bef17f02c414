//! Sets `cfg(testkit)`, for the unit tests that need a server of their own, and `cfg(models)`, for
//! the models of all interleavings, in a build with shuttle. Neither this nor the test kit is in the
//! published package, whose other tests run without them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=testkit");
    if std::env::var_os("CARGO_CFG_SHUTTLE").is_some() {
        println!("cargo::rustc-cfg=models");
    }
}
