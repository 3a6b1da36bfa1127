//! How librsocket.so is linked:
//! - with a name of its own, for programs that are linked with it;
//! - never to be unloaded, since the steps around `fork` point into it;
//! - with what a byte passes side by side.

fn main() {
    // Asked when it runs: one that was built for another checkout may serve this one, too.
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the crate is");
    let layout = format!("{here}/../rsocket-core/data-path.ld");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={layout}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librsocket.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-T,{layout}");
}
