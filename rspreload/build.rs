//! How librspreload.so is linked: with what a byte passes side by side.

fn main() {
    let layout = concat!(env!("CARGO_MANIFEST_DIR"), "/../rsocket-core/data-path.ld");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={layout}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-T,{layout}");
    // The library looks its own functions up there (`rebind.rs`).
    println!("cargo::rustc-cdylib-link-arg=-Wl,--hash-style=gnu");
}
