//! How often passwords may be tried: a few times at once, then ever more slowly, for each address,
//! for each name, and for all together.
//!
//! Behind a proxy all have one address, and whoever has many addresses tries one name: so both count.
//! A name waits a little at most, and all together too: nobody is shut out for long by what others do.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use heeler_model::AccessName;

/// How often an address or a name may be wrong before it has to wait.
pub(super) const FREE_TRIES: u32 = 5;

/// How often all together may be.
pub(super) const FREE_TRIES_OF_ALL: u32 = 50;

/// The first wait; each further one is twice as long.
const WAIT_FIRST: Duration = Duration::from_secs(1);

/// The longest wait of an address.
const WAIT_MAX: Duration = Duration::from_secs(15 * 60);

/// The longest wait of a name: whoever tries it from elsewhere keeps nobody out for long.
const WAIT_MAX_OF_NAME: Duration = Duration::from_secs(30);

/// The longest wait of all together: whoever tries from everywhere keeps nobody out.
const WAIT_MAX_OF_ALL: Duration = Duration::from_secs(10);

/// How long it is remembered that somebody was wrong.
const REMEMBERED: Duration = Duration::from_secs(60 * 60);

/// How many addresses, and how many names, are remembered; one more, and the one that was wrong
/// longest ago is not.
const KEYS_MAX: usize = 4_096;

/// Who tries.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Try {
    /// From where; none through a proxy, whose address is everybody's.
    pub(super) address: Option<IpAddr>,
    /// Under which name; what is none is nobody's, and is not remembered.
    pub(super) name: Option<AccessName>,
}

/// Who was wrong how often.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    addresses: HashMap<IpAddr, Tries>,
    names: HashMap<AccessName, Tries>,
    all: Option<Tries>,
}

#[derive(Debug, Clone, Copy)]
struct Tries {
    count: u32,
    last: Instant,
}

impl Tries {
    fn wait(self, free: u32, most: Duration, now: Instant) -> Option<Duration> {
        let beyond = self.count.checked_sub(free)?;
        let wait = WAIT_FIRST.saturating_mul(2_u32.saturating_pow(beyond)).min(most);
        let left = (self.last + wait).saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    fn is_remembered(self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) < REMEMBERED
    }

    fn once_more(tries: Option<Tries>, now: Instant) -> Tries {
        let count = tries.map_or(0, |tries| tries.count).saturating_add(1);
        Tries { count, last: now }
    }
}

impl Limiter {
    /// Counts a try as wrong until it is known to be right, or says how long to wait before one.
    pub(super) fn begin(&mut self, who: &Try, now: Instant) -> Result<(), Duration> {
        let address = who.address.map(network);
        self.addresses.retain(|_, tries| tries.is_remembered(now));
        self.names.retain(|_, tries| tries.is_remembered(now));
        self.all = self.all.filter(|tries| tries.is_remembered(now));
        let tries = address.and_then(|address| self.addresses.get(&address));
        let of_address = tries.and_then(|it| it.wait(FREE_TRIES, WAIT_MAX, now));
        let tries = who.name.as_ref().and_then(|name| self.names.get(name));
        let of_name = tries.and_then(|it| it.wait(FREE_TRIES, WAIT_MAX_OF_NAME, now));
        let of_all = self.all.and_then(|it| it.wait(FREE_TRIES_OF_ALL, WAIT_MAX_OF_ALL, now));
        if let Some(wait) = of_address.max(of_name).max(of_all) {
            return Err(wait);
        }
        if let Some(address) = address {
            count(&mut self.addresses, address, now);
        }
        if let Some(name) = &who.name {
            count(&mut self.names, name.clone(), now);
        }
        self.all = Some(Tries::once_more(self.all, now));
        Ok(())
    }

    /// Notes that a try was right.
    pub(super) fn was_right(&mut self, who: &Try) {
        if let Some(address) = who.address {
            self.addresses.remove(&network(address));
        }
        if let Some(name) = &who.name {
            self.names.remove(name);
        }
        if let Some(all) = &mut self.all {
            all.count = all.count.saturating_sub(1);
        }
    }
}

/// Counts one more try, in bounded room.
fn count<K: Clone + Eq + Hash>(all: &mut HashMap<K, Tries>, key: K, now: Instant) {
    if all.len() >= KEYS_MAX && !all.contains_key(&key) {
        let oldest = all.iter().min_by_key(|(_, tries)| tries.last);
        if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
            all.remove(&oldest);
        }
    }
    let tries = Tries::once_more(all.get(&key).copied(), now);
    all.insert(key, tries);
}

/// Returns what one customer has: an address, or the network of an IPv6 address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// Somebody at an address who tries no name twice.
    fn at(address: IpAddr) -> Try {
        Try { address: Some(address), name: None }
    }

    /// Somebody behind a proxy.
    fn called(name: &str) -> Try {
        Try { address: None, name: Some(name.parse().unwrap()) }
    }

    #[test]
    fn whoever_is_wrong_waits_longer_each_time_and_others_do_not() {
        let (mut limiter, mut now) = (Limiter::default(), Instant::now());
        let (one, other) = (at(address(1)), at(address(2)));
        for _ in 0..FREE_TRIES {
            limiter.begin(&one, now).unwrap();
        }
        let mut wait = WAIT_FIRST;
        for _ in 0..12 {
            assert_eq!(limiter.begin(&one, now), Err(wait));
            limiter.begin(&other, now).unwrap();
            limiter.was_right(&other);
            now += wait;
            limiter.begin(&one, now).unwrap();
            wait = (wait * 2).min(WAIT_MAX);
        }
        assert_eq!(wait, WAIT_MAX);
    }

    #[test]
    fn behind_a_proxy_one_name_that_is_tried_keeps_no_other_waiting() {
        let (mut limiter, mut now) = (Limiter::default(), Instant::now());
        for _ in 0..FREE_TRIES {
            limiter.begin(&called("ann"), now).unwrap();
        }
        assert_eq!(limiter.begin(&called("ann"), now), Err(WAIT_FIRST));
        limiter.begin(&called("bob"), now).unwrap();
        limiter.was_right(&called("bob"));
        // However long it goes on, the name's own is let in soon.
        for _ in 0..20 {
            let wait = limiter.begin(&called("ann"), now).unwrap_err();
            assert!(wait <= WAIT_MAX_OF_NAME);
            now += wait;
            limiter.begin(&called("ann"), now).unwrap();
        }
        assert_eq!(limiter.begin(&called("ann"), now), Err(WAIT_MAX_OF_NAME));
        limiter.was_right(&called("ann"));
        limiter.begin(&called("ann"), now).unwrap();
    }

    #[test]
    fn many_addresses_try_one_name_no_faster_than_one_does() {
        let (mut limiter, now) = (Limiter::default(), Instant::now());
        let ann = |number: u32| Try {
            address: Some(address(u8::try_from(number).unwrap())),
            ..called("ann")
        };
        for number in 0..FREE_TRIES {
            limiter.begin(&ann(number), now).unwrap();
        }
        assert_eq!(limiter.begin(&ann(100), now), Err(WAIT_FIRST));
    }

    #[test]
    fn whoever_is_right_begins_anew_and_so_does_whoever_waited_an_hour() {
        let (mut limiter, now, one) = (Limiter::default(), Instant::now(), at(address(1)));
        for _ in 0..3 * FREE_TRIES {
            limiter.begin(&one, now).unwrap();
            limiter.was_right(&one);
        }
        for _ in 0..FREE_TRIES {
            limiter.begin(&one, now).unwrap();
        }
        assert!(limiter.begin(&one, now).is_err());
        limiter.begin(&one, now + REMEMBERED).unwrap();
        limiter.begin(&one, now + REMEMBERED).unwrap();
    }

    #[test]
    fn all_together_wait_a_little_however_many_addresses_they_have() {
        let (mut limiter, mut now) = (Limiter::default(), Instant::now());
        for number in 0..FREE_TRIES_OF_ALL {
            limiter.begin(&at(address(u8::try_from(number).unwrap())), now).unwrap();
        }
        for number in 0..20 {
            let wait = limiter.begin(&at(address(100 + number)), now).unwrap_err();
            assert!(wait <= WAIT_MAX_OF_ALL);
            now += wait;
            limiter.begin(&at(address(100 + number)), now).unwrap();
        }
        assert_eq!(limiter.begin(&at(address(200)), now), Err(WAIT_MAX_OF_ALL));
    }

    #[test]
    fn more_addresses_of_one_network_are_no_way_around() {
        let (mut limiter, now) = (Limiter::default(), Instant::now());
        for number in 0..u64::from(FREE_TRIES) {
            let one = format!("2001:db8::{number:x}:1").parse().unwrap();
            limiter.begin(&at(one), now).unwrap();
        }
        assert!(limiter.begin(&at("2001:db8::1".parse().unwrap()), now).is_err());
        assert!(limiter.begin(&at("2001:db8:0:1::1".parse().unwrap()), now).is_ok());
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), address(1));
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for() {
        let (mut tries, now) = (HashMap::new(), Instant::now());
        for number in 0..KEYS_MAX + 10 {
            count(&mut tries, number, now + Duration::from_nanos(number as u64));
        }
        assert_eq!(tries.len(), KEYS_MAX);
        assert!(!tries.contains_key(&9) && tries.contains_key(&10), "the oldest went");
    }
}
