//! Sets `cfg(models)`, for the models of all interleavings, in a build with shuttle. The published
//! package does not contain this file.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_CFG_SHUTTLE").is_some() {
        println!("cargo::rustc-cfg=models");
    }
}
