//! Links the program at a fixed address.
//!
//! Heeler starts itself for every run. A program without a fixed address is adjusted in a hundred
//! thousand places each time it starts, which took more than half of that time.

#[expect(clippy::disallowed_methods, reason = "cargo tells the target by a variable")]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).as_deref() == Ok(value);
    // Rust links programs for musl with startup code that needs an address of its own choice: with
    // this option they crash before their first line.
    if is("CARGO_CFG_TARGET_OS", "linux") && !is("CARGO_CFG_TARGET_ENV", "musl") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
