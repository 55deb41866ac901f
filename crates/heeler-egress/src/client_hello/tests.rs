//! Tests of the ClientHello parser.

use super::*;

fn vector16(content: &[u8]) -> Vec<u8> {
    let size = u16::try_from(content.len()).unwrap();
    [&size.to_be_bytes()[..], content].concat()
}

fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &vector16(data)].concat()
}

fn server_name(name: &str) -> Vec<u8> {
    extension(0, &vector16(&[&[0], &vector16(name.as_bytes())[..]].concat()))
}

/// Returns a handshake message with these extensions.
fn message(extensions: &[u8]) -> Vec<u8> {
    let body =
        [&[3, 3][..], &[7; 32], &[0], &vector16(&[0x13, 0x01]), &[1, 0], &vector16(extensions)]
            .concat();
    let size = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1], &size[1..], &body].concat()
}

/// Splits a message into records of at most `size` bytes.
fn records(message: &[u8], size: usize) -> Vec<u8> {
    message.chunks(size).flat_map(|part| [&[22, 3, 1][..], &vector16(part)].concat()).collect()
}

/// Returns a ClientHello for a server.
pub(crate) fn hello_for(name: &str) -> Vec<u8> {
    records(&message(&[extension(43, &[2, 3, 4]), server_name(name)].concat()), 16 << 10)
}

fn named(name: &str) -> HelloFinding {
    HelloFinding::ServerName(name.parse().unwrap())
}

#[test]
fn the_server_name_is_found_however_the_message_is_split() {
    let hello = message(&[extension(10, &[0; 400]), server_name("Api.Example.com")].concat());
    for size in [1, 3, 100, 16 << 10] {
        let bytes = records(&hello, size);
        assert_eq!(inspect_hello(&bytes), named("api.example.com"), "{size}");
        for end in (0..bytes.len()).step_by(if size == 1 { 97 } else { 1 }) {
            assert_eq!(inspect_hello(&bytes[..end]), HelloFinding::Incomplete, "{size} {end}");
        }
    }
    let followed = [hello_for("a.example"), b"more".to_vec()].concat();
    assert_eq!(inspect_hello(&followed), named("a.example"));
}

#[test]
fn a_hello_that_can_be_read_in_two_ways_is_malformed() {
    let whole = |extensions: &[u8]| inspect_hello(&records(&message(extensions), 16 << 10));
    let twice = [server_name("a.example"), server_name("b.example")].concat();
    assert_eq!(whole(&twice), HelloFinding::Malformed);
    let entry = |name: &str| [&[0][..], &vector16(name.as_bytes())].concat();
    let two_entries = vector16(&[entry("a.example"), entry("b.example")].concat());
    assert_eq!(whole(&extension(0, &two_entries)), HelloFinding::Malformed);
    let trailing = [vector16(&entry("a.example")), vec![0]].concat();
    assert_eq!(whole(&extension(0, &trailing)), HelloFinding::Malformed);
    for name in ["", "10.0.0.1", "a.example\0", "a..example", "b\u{fc}cher.example", "a example"] {
        assert_eq!(whole(&server_name(name)), HelloFinding::Malformed, "{name:?}");
    }
    let mut longer = message(&server_name("a.example"));
    longer.extend([0; 3]);
    longer[3] += 3;
    assert_eq!(inspect_hello(&records(&longer, 16 << 10)), HelloFinding::Malformed);
}

#[test]
fn a_hello_without_a_readable_name_is_recognized() {
    let whole = |extensions: &[u8]| inspect_hello(&records(&message(extensions), 16 << 10));
    assert_eq!(whole(&extension(43, &[2, 3, 4])), HelloFinding::NoServerName);
    let hidden = [server_name("a.example"), extension(0xfe0d, &[0; 200])].concat();
    assert_eq!(whole(&hidden), HelloFinding::Encrypted);
}

#[test]
fn other_bytes_are_no_hello() {
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0-x", b"\x80\x2e\x01\x03\x01", b"\0"] {
        assert_eq!(inspect_hello(bytes), HelloFinding::NotTls);
    }
    for bytes in [
        &b"\x16\x02"[..],
        b"\x16\x03\x01\0\0",
        b"\x16\x03\x01\xff\xff",
        // Another handshake message, and another kind of record within the message.
        b"\x16\x03\x01\0\x04\x02",
        b"\x16\x03\x01\0\x01\x01\x17",
        // A message of 16 MiB.
        b"\x16\x03\x01\0\x04\x01\xff\xff\xff",
    ] {
        assert_eq!(inspect_hello(bytes), HelloFinding::Malformed, "{bytes:?}");
    }
    assert_eq!(inspect_hello(b""), HelloFinding::Incomplete);
}

#[test]
fn no_bytes_make_the_parser_panic() {
    let hello = hello_for("a.example");
    for position in 0..hello.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = hello.clone();
            bytes[position] = value;
            drop(inspect_hello(&bytes));
            drop(inspect_hello(&bytes[position..]));
        }
    }
}
