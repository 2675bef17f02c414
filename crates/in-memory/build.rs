//! Sets `cfg(models)`, for the models of all interleavings, in a build with shuttle. It is not in
//! the published package.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_CFG_SHUTTLE").is_some() {
        println!("cargo::rustc-cfg=models");
    }
}
