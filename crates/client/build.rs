//! Sets `cfg(testkit)`, for the unit tests that need a server of their own. Neither this nor the
//! test kit is in the published package, whose other tests run without them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=testkit");
}
