//! Local addresses that a sandboxed agent reaches at ports of its own.

use std::collections::HashSet;

use serde_json::Value as Json;

use crate::egress::LocalAddress;
use crate::reader::ConfigReader;
use crate::shape::ValueShape;
use crate::value::ConfigValue;
use crate::yaml::YamlNode;

/// Most forwarded addresses of one agent.
pub const LOOPBACK_FORWARDS_MAX: usize = 8;

/// Ports inside of a sandbox that the proxy and the injected servers use.
pub const SANDBOX_PORTS: [u16; 2] = [3128, 3129];

/// Smallest port that a program without privileges can listen on.
const PORT_MIN: u16 = 1024;

/// Local addresses that an agent reaches at the same port of its own loopback interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoopbackForwards(Vec<LocalAddress>);

impl LoopbackForwards {
    pub fn addresses(&self) -> &[LocalAddress] {
        &self.0
    }

    fn check(&self) -> Result<(), String> {
        if self.0.len() > LOOPBACK_FORWARDS_MAX {
            return Err(format!("there are more than {LOOPBACK_FORWARDS_MAX} addresses"));
        }
        let mut seen = HashSet::new();
        for port in self.0.iter().map(|address| address.port.get()) {
            if !seen.insert(port) {
                return Err(format!("two addresses have the port {port}"));
            }
            if port < PORT_MIN {
                return Err(format!("the agent cannot listen on port {port}"));
            }
            if SANDBOX_PORTS.contains(&port) {
                return Err(format!("Heeler itself uses port {port} in a sandbox"));
            }
        }
        Ok(())
    }
}

impl ConfigValue for LoopbackForwards {
    fn shape() -> ValueShape {
        Vec::<LocalAddress>::shape()
    }
    fn read(node: &YamlNode, reader: &mut ConfigReader) -> Option<LoopbackForwards> {
        let forwards = LoopbackForwards(Vec::read(node, reader)?);
        if let Err(reason) = forwards.check() {
            let expected = "addresses with different ports from 1024 on, other than 3128 and 3129";
            reader.error(node.at, reason).expected(expected);
            return None;
        }
        Some(forwards)
    }
    fn absent() -> Option<LoopbackForwards> {
        Some(LoopbackForwards::default())
    }
    fn show(&self) -> Json {
        self.0.show()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_a_port_that_the_agent_can_use() {
        let check = |addresses: &[&str]| {
            let all = addresses.iter().map(|text| text.parse().unwrap()).collect();
            LoopbackForwards(all).check()
        };
        assert_eq!(check(&["127.0.0.1:5432", "db.internal:6379"]), Ok(()));
        for (addresses, reason) in [
            (&["127.0.0.1:5432", "10.0.0.1:5432"][..], "two addresses"),
            (&["127.0.0.1:80"], "cannot listen"),
            (&["127.0.0.1:3128"], "Heeler itself"),
        ] {
            assert!(check(addresses).unwrap_err().contains(reason), "{addresses:?}");
        }
        let many: Vec<String> = (0..9).map(|port| format!("127.0.0.1:{}", 2000 + port)).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(check(&many).unwrap_err().contains("more than 8"));
        assert_eq!(check(&many[..LOOPBACK_FORWARDS_MAX]), Ok(()));
    }
}
