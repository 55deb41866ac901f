//! How often passwords may be tried: a few times at once, then ever more slowly, for each address
//! and for all together. Nobody is shut out for long by what others do.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// How often an address may be wrong before it has to wait.
pub(super) const FREE_TRIES: u32 = 5;

/// How often all addresses together may be.
pub(super) const FREE_TRIES_OF_ALL: u32 = 50;

/// The first wait; each further one is twice as long.
const WAIT_FIRST: Duration = Duration::from_secs(1);

/// The longest wait of an address.
const WAIT_MAX: Duration = Duration::from_secs(15 * 60);

/// The longest wait of all addresses together: whoever tries from everywhere keeps nobody out.
const WAIT_MAX_OF_ALL: Duration = Duration::from_secs(10);

/// How long it is remembered that somebody was wrong.
const REMEMBERED: Duration = Duration::from_secs(60 * 60);

/// How many addresses are remembered; one more, and the one that was wrong longest ago is not.
const ADDRESSES_MAX: usize = 4_096;

/// Who was wrong how often.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    addresses: HashMap<IpAddr, Tries>,
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
}

impl Limiter {
    /// Counts a try as wrong until it is known to be right, or says how long to wait before one.
    pub(super) fn begin(&mut self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let address = network(address);
        self.addresses.retain(|_, tries| tries.is_remembered(now));
        self.all = self.all.filter(|tries| tries.is_remembered(now));
        let own = self.addresses.get(&address).and_then(|it| it.wait(FREE_TRIES, WAIT_MAX, now));
        let all = self.all.and_then(|it| it.wait(FREE_TRIES_OF_ALL, WAIT_MAX_OF_ALL, now));
        if let Some(wait) = own.max(all) {
            return Err(wait);
        }
        if self.addresses.len() >= ADDRESSES_MAX && !self.addresses.contains_key(&address) {
            let oldest = self.addresses.iter().min_by_key(|(_, tries)| tries.last);
            if let Some(oldest) = oldest.map(|(address, _)| *address) {
                self.addresses.remove(&oldest);
            }
        }
        let once_more = |tries: Option<Tries>| Tries {
            count: tries.map_or(0, |tries| tries.count).saturating_add(1),
            last: now,
        };
        let own = once_more(self.addresses.get(&address).copied());
        self.addresses.insert(address, own);
        self.all = Some(once_more(self.all));
        Ok(())
    }

    /// Notes that a try was right.
    pub(super) fn was_right(&mut self, address: IpAddr) {
        self.addresses.remove(&network(address));
        if let Some(all) = &mut self.all {
            all.count = all.count.saturating_sub(1);
        }
    }
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

    #[test]
    fn whoever_is_wrong_waits_longer_each_time_and_others_do_not() {
        let (mut limiter, mut now) = (Limiter::default(), Instant::now());
        for _ in 0..FREE_TRIES {
            limiter.begin(address(1), now).unwrap();
        }
        let mut wait = WAIT_FIRST;
        for _ in 0..12 {
            assert_eq!(limiter.begin(address(1), now), Err(wait));
            limiter.begin(address(2), now).unwrap();
            limiter.was_right(address(2));
            now += wait;
            limiter.begin(address(1), now).unwrap();
            wait = (wait * 2).min(WAIT_MAX);
        }
        assert_eq!(wait, WAIT_MAX);
    }

    #[test]
    fn whoever_is_right_begins_anew_and_so_does_whoever_waited_an_hour() {
        let (mut limiter, now) = (Limiter::default(), Instant::now());
        for _ in 0..3 * FREE_TRIES {
            limiter.begin(address(1), now).unwrap();
            limiter.was_right(address(1));
        }
        for _ in 0..FREE_TRIES {
            limiter.begin(address(1), now).unwrap();
        }
        assert!(limiter.begin(address(1), now).is_err());
        limiter.begin(address(1), now + REMEMBERED).unwrap();
        limiter.begin(address(1), now + REMEMBERED).unwrap();
    }

    #[test]
    fn all_together_wait_a_little_however_many_addresses_they_have() {
        let (mut limiter, mut now) = (Limiter::default(), Instant::now());
        for number in 0..FREE_TRIES_OF_ALL {
            limiter.begin(address(u8::try_from(number).unwrap()), now).unwrap();
        }
        for number in 0..20 {
            let wait = limiter.begin(address(100 + number), now).unwrap_err();
            assert!(wait <= WAIT_MAX_OF_ALL);
            now += wait;
            limiter.begin(address(100 + number), now).unwrap();
        }
        assert_eq!(limiter.begin(address(200), now), Err(WAIT_MAX_OF_ALL));
    }

    #[test]
    fn neither_more_addresses_of_one_network_nor_of_the_world_are_a_way_around() {
        let (mut limiter, now) = (Limiter::default(), Instant::now());
        for number in 0..u64::from(FREE_TRIES) {
            let one = format!("2001:db8::{number:x}:1").parse().unwrap();
            limiter.begin(one, now).unwrap();
        }
        assert!(limiter.begin("2001:db8::1".parse().unwrap(), now).is_err());
        assert!(limiter.begin("2001:db8:0:1::1".parse().unwrap(), now).is_ok());
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), address(1));
        for number in 0..u32::try_from(ADDRESSES_MAX).unwrap() + 10 {
            let at = now + WAIT_MAX_OF_ALL * number / 1000;
            let _wait = limiter.begin(IpAddr::from(number.to_be_bytes()), at);
        }
        assert!(limiter.addresses.len() <= ADDRESSES_MAX);
    }
}
