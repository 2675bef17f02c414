//! Sets two flags for unit tests in a checkout: `cfg(testkit)` for tests that need a server of
//! their own, and, in a build with shuttle, `cfg(models)` for the models of all interleavings. The
//! published package lacks this file and the test kit. Its other tests run without them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=testkit");
    if std::env::var_os("CARGO_CFG_SHUTTLE").is_some() {
        println!("cargo::rustc-cfg=models");
    }
}
