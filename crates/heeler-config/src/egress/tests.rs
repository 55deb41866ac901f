//! Tests of hosts, ports and addresses.

use std::net::IpAddr;

use super::*;

fn rules(yaml: &str) -> EgressRules {
    crate::shape::read_default::<EgressConfig>(yaml).unwrap().rules()
}

#[track_caller]
fn judge(rules: &EgressRules, host: &str, port: u16) -> HostVerdict {
    rules.judge(&host.parse().unwrap(), port)
}

#[test]
fn a_wildcard_matches_whole_labels_below_its_name_only() {
    let rules = rules("{allow: ['*.example.com', pypi.org], presets: []}");
    for host in ["a.example.com", "a.b.example.com", "A.EXAMPLE.com", "a.example.com.", "pypi.org"]
    {
        assert_eq!(judge(&rules, host, 443), HostVerdict::Public, "{host}");
    }
    for host in [
        "example.com",
        "evilexample.com",
        "example.com.evil.net",
        "a.pypi.org",
        "pypi.org.evil.net",
    ] {
        assert_eq!(judge(&rules, host, 443), HostVerdict::UnlistedHost, "{host}");
    }
}

#[test]
fn a_host_is_reached_at_its_listed_ports_only() {
    let web = rules("{allow: [a.example, 'b.example:8443'], presets: []}");
    assert_eq!(judge(&web, "a.example", 80), HostVerdict::Public);
    assert_eq!(judge(&web, "a.example", 443), HostVerdict::Public);
    assert_eq!(judge(&web, "a.example", 25), HostVerdict::UnlistedPort);
    assert_eq!(judge(&web, "b.example", 8443), HostVerdict::Public);
    assert_eq!(judge(&web, "b.example", 443), HostVerdict::UnlistedPort);
    let other = rules("{allow: [a.example], presets: [], ports: [22]}");
    assert_eq!(judge(&other, "a.example", 22), HostVerdict::Public);
    assert_eq!(judge(&other, "a.example", 443), HostVerdict::UnlistedPort);
}

#[test]
fn names_are_compared_as_dns_compares_them() {
    let rules = rules("{allow: ['Bücher.example', XN--BCHER-KVA.test], presets: []}");
    for host in ["bücher.example", "xn--bcher-kva.example", "BÜCHER.example.", "bücher.test"] {
        assert_eq!(judge(&rules, host, 443), HostVerdict::Public, "{host}");
    }
    // A name that only looks the same: the second letter is Cyrillic.
    assert_eq!(judge(&rules, "bсcher.example", 443), HostVerdict::UnlistedHost);
}

#[test]
fn no_spelling_of_an_address_is_a_name() {
    let rules = rules("{allow: ['*.example.com'], presets: []}");
    for host in [
        "127.0.0.1",
        "127.1",
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "169.254.169.254",
        "8.8.8.8",
        "[::1]",
        "::1",
        "[::ffff:127.0.0.1]",
        "127.0.0.1.",
        "１２７.0.0.1",
    ] {
        assert!(matches!(host.parse(), Ok(RequestHost::Ip(_))), "{host}");
        assert_eq!(judge(&rules, host, 443), HostVerdict::IpLiteral, "{host}");
    }
    for host in [
        "",
        ".",
        "..",
        "a..b",
        ".a",
        "a b",
        "a\0b",
        "a%2eb",
        "a/b",
        "a:b",
        "a@b",
        "[a]",
        "a\r\nb",
        "*",
        "256.1.1.1.1",
        "a,b",
        &"a".repeat(64),
        &"a.".repeat(127),
        &"ab.".repeat(100),
    ] {
        // The longest legal name has 253 bytes, which the second last of these has too.
        let is_longest = host.len() == 254 && host.ends_with('.');
        assert_eq!(host.parse::<RequestHost>().is_ok(), is_longest, "{host}");
    }
}

#[test]
fn local_addresses_are_allowed_one_by_one() {
    let rules = rules(
        "{presets: [], allow_local: ['127.0.0.1:5432', 'localhost:80', '[::1]:9', 'db.lan:1']}",
    );
    assert_eq!(judge(&rules, "127.0.0.1", 5432), HostVerdict::Local);
    assert_eq!(judge(&rules, "LOCALHOST", 80), HostVerdict::Local);
    assert_eq!(judge(&rules, "[::1]", 9), HostVerdict::Local);
    assert_eq!(judge(&rules, "db.lan", 1), HostVerdict::Local);
    assert_eq!(judge(&rules, "127.0.0.1", 5433), HostVerdict::IpLiteral);
    assert_eq!(judge(&rules, "localhost", 443), HostVerdict::UnlistedHost);
}

#[test]
fn addresses_are_classified() {
    let class = |ip: &str| classify_address(ip.parse::<IpAddr>().unwrap());
    for ip in [
        "8.8.8.8",
        "1.1.1.1",
        "172.32.0.1",
        "100.128.0.1",
        "2606:4700::1111",
        "2a00::1",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
    ] {
        assert_eq!(class(ip), AddressClass::Public, "{ip}");
    }
    for ip in [
        "127.0.0.1",
        "127.255.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "::1",
        "fc00::1",
        "fdff::1",
        "::ffff:10.0.0.1",
        "::ffff:127.0.0.1",
        "64:ff9b::10.0.0.1",
    ] {
        assert_eq!(class(ip), AddressClass::Local, "{ip}");
    }
    for ip in [
        "0.0.0.0",
        "0.1.2.3",
        "169.254.169.254",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "198.18.0.1",
        "168.63.129.16",
        "100.100.100.200",
        "::",
        "::ffff:169.254.169.254",
        "::ffff:0.0.0.0",
        "::127.0.0.1",
        "fe80::1",
        "febf::1",
        "ff02::1",
        "fd00:ec2::254",
        "2002:7f00:1::",
        "2001::1",
        "2001:db8::1",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::1",
        "100::1",
        "fec0::1",
        "4000::1",
    ] {
        assert!(matches!(class(ip), AddressClass::Refused(_)), "{ip}");
    }
}

#[test]
fn unusable_entries_are_refused_with_the_reason() {
    let host = |text: &str| text.parse::<HostPattern>().unwrap_err();
    assert_eq!(host("*"), HostNameError::Wildcard);
    assert_eq!(host("*.com"), HostNameError::Wildcard);
    assert_eq!(host("a.*.com"), HostNameError::Wildcard);
    assert_eq!(host("10.0.0.1"), HostNameError::IpAddress);
    assert_eq!(host("10.0.0.1:80"), HostNameError::IpAddress);
    assert_eq!(host("::1"), HostNameError::IpAddress);
    assert_eq!(host("[::1]:80"), HostNameError::IpAddress);
    for text in ["a.example:0", "a.example:65536", "a.example:+1", "a.example:", "a.example:x"] {
        assert_eq!(host(text), HostNameError::Port, "{text}");
    }
    assert_eq!(host("https://a.example"), HostNameError::Port);
    let local = |text: &str| text.parse::<LocalAddress>().unwrap_err();
    assert_eq!(local("localhost"), HostNameError::NoPort);
    assert_eq!(local("::1"), HostNameError::NoPort);
    assert_eq!(local("8.8.8.8:53"), HostNameError::PublicAddress);
    for text in ["169.254.169.254:80", "[::ffff:169.254.169.254]:80", "[fe80::1]:80", "0.0.0.0:80"]
    {
        assert!(matches!(local(text), HostNameError::NeverAllowed(_)), "{text}");
    }
}

#[test]
fn every_preset_has_hosts_that_are_parsed() {
    for preset in EgressPreset::ALL {
        assert_eq!(preset.patterns().count(), preset.hosts().len(), "{preset}");
        let rules = rules(&format!("{{presets: [{preset}]}}"));
        for host in preset.hosts() {
            assert_eq!(judge(&rules, host, 443), HostVerdict::Public, "{host}");
        }
    }
}

#[test]
fn what_is_shown_is_read_again() {
    for yaml in [
        "none",
        "{}",
        "{allow: ['*.a.example:1', b.example], presets: [npm], ports: [1],
        allow_local: ['[::1]:2', '127.0.0.1:3', 'x:4']}",
    ] {
        let config = crate::shape::read_default::<EgressConfig>(yaml).unwrap();
        let shown = config.show().to_string();
        assert_eq!(crate::shape::read_default::<EgressConfig>(&shown).unwrap(), config, "{shown}");
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<EgressConfig>(&json).unwrap(), config, "{json}");
    }
    assert_eq!(crate::shape::read_default::<EgressConfig>("{}"), Some(EgressConfig::default()));
    for yaml in ["true", "open", "{allow: [10.0.0.1]}", "{preset: [npm]}"] {
        let mut reader = ConfigReader::new(crate::ConfigDialect::Heeler, None);
        let file = reader.add_source("x.yaml".into(), yaml.to_owned());
        let node = crate::yaml::parse(file, &mut reader).unwrap();
        drop(EgressConfig::read(&node, &mut reader));
        assert_eq!(reader.error_count(), 1, "{yaml}");
    }
}

#[test]
fn rules_are_compared() {
    let within = |a: &str, b: &str| rules(a).is_within(&rules(b));
    assert!(within("none", "none"));
    assert!(within("none", "{}"));
    assert!(!within("{}", "none"));
    assert!(within("{allow: [a.b.example]}", "{allow: ['*.b.example']}"));
    assert!(within("{allow: ['*.a.b.example']}", "{allow: ['*.b.example']}"));
    assert!(!within("{allow: ['*.b.example']}", "{allow: [a.b.example]}"));
    assert!(!within("{allow: [b.example]}", "{allow: ['*.b.example']}"));
    assert!(within("{allow: ['a.example:80']}", "{allow: [a.example]}"));
    assert!(!within("{allow: ['a.example:22']}", "{allow: [a.example]}"));
    assert!(!within("{allow: [a.example]}", "{allow: ['a.example:443']}"));
    assert!(!within("{ports: [443, 22]}", "{}"));
    assert!(within(
        "{presets: [npm]}",
        "{presets: [], allow: [registry.npmjs.org, registry.yarnpkg.com]}"
    ));
    assert!(!within("{allow_local: ['127.0.0.1:1']}", "{}"));
}
