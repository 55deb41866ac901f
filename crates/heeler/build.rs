//! Links the program at a fixed address.
//!
//! Heeler starts itself for every run. A program without a fixed address is adjusted in a hundred
//! thousand places each time it starts, which took more than half of that time.

#[expect(clippy::disallowed_methods, reason = "cargo tells the target by a variable")]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
