//! Rate limit of password attempts: a few are free, then each wait is longer. Attempts are counted
//! per address, per name, and in total.
//!
//! All users behind a proxy share one address, and an attacker with many addresses may try one
//! name: so both count. The waits per name and in total are short, so that attacks by others lock
//! no user out for long. An address without failures does not wait for them at all, or an attacker
//! who is fast could use every attempt that becomes free.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use heeler_model::AccessName;

/// Failed attempts of an address or a name before it must wait.
pub(super) const FREE_ATTEMPTS: u32 = 5;

/// Failed attempts in total before all must wait.
pub(super) const FREE_ATTEMPTS_TOTAL: u32 = 50;

/// First wait; each further wait is twice as long.
const WAIT_FIRST: Duration = Duration::from_secs(1);

/// Longest wait of an address.
const ADDRESS_WAIT_MAX: Duration = Duration::from_secs(15 * 60);

/// Longest wait of this machine. It is short, because every program on it has the same address.
const LOCAL_WAIT_MAX: Duration = Duration::from_secs(30);

/// Attempts of an address that do not wait for failures of others.
const FRESH_ATTEMPTS: u32 = 2;

/// Most attempts of fresh addresses within [`FRESH_PERIOD`]. Further ones wait like others.
const FRESH_ATTEMPTS_TOTAL: u32 = 60;

/// Period of [`FRESH_ATTEMPTS_TOTAL`].
const FRESH_PERIOD: Duration = Duration::from_secs(60);

/// Longest wait of a name. It is short, so that an attacker elsewhere cannot lock out the name's
/// owner.
const NAME_WAIT_MAX: Duration = Duration::from_secs(30);

/// Longest wait of all together. It is short, so that a distributed attack cannot lock out users.
const TOTAL_WAIT_MAX: Duration = Duration::from_secs(10);

/// Time after which failures are forgotten.
const FAILURE_TTL: Duration = Duration::from_secs(60 * 60);

/// Most addresses, and most names, that are remembered; one more removes the one with the oldest
/// failure.
const KEYS_MAX: usize = 4_096;

/// Keys of a login attempt.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LoginAttempt {
    /// Client address; `None` behind a proxy, which has one address for all users.
    pub(super) address: Option<IpAddr>,
    /// User name; `None` if it is not a valid name, which is not remembered.
    pub(super) name: Option<AccessName>,
}

/// Counts of failed attempts.
#[derive(Debug, Default)]
pub(super) struct LoginLimiter {
    addresses: HashMap<IpAddr, LoginFailures>,
    names: HashMap<AccessName, LoginFailures>,
    total: Option<LoginFailures>,
    /// Begin of the current period of fresh attempts, and their number.
    fresh: Option<(Instant, u32)>,
}

#[derive(Debug, Clone, Copy)]
struct LoginFailures {
    count: u32,
    last: Instant,
}

impl LoginFailures {
    fn remaining_wait(self, free: u32, most: Duration, now: Instant) -> Option<Duration> {
        let beyond = self.count.checked_sub(free)?;
        let wait = WAIT_FIRST.saturating_mul(2_u32.saturating_pow(beyond)).min(most);
        let remaining = (self.last + wait).saturating_duration_since(now);
        (!remaining.is_zero()).then_some(remaining)
    }

    fn is_recent(self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) < FAILURE_TTL
    }

    fn increment(tries: Option<LoginFailures>, now: Instant) -> LoginFailures {
        let count = tries.map_or(0, |tries| tries.count).saturating_add(1);
        LoginFailures { count, last: now }
    }
}

impl LoginLimiter {
    /// Counts an attempt as failed until [`LoginLimiter::record_success`], or returns the time to
    /// wait before the next one.
    pub(super) fn begin_attempt(
        &mut self,
        attempt: &LoginAttempt,
        now: Instant,
    ) -> Result<(), Duration> {
        let address = attempt.address.map(network);
        // Old failures go before the check, so that they cause no wait.
        self.addresses.retain(|_, tries| tries.is_recent(now));
        self.names.retain(|_, tries| tries.is_recent(now));
        self.total = self.total.filter(|tries| tries.is_recent(now));
        let tries = address.and_then(|address| self.addresses.get(&address));
        let is_local = address.is_some_and(|address| address.is_loopback());
        let address_max = if is_local { LOCAL_WAIT_MAX } else { ADDRESS_WAIT_MAX };
        let is_fresh = address.is_some() && tries.is_none_or(|it| it.count < FRESH_ATTEMPTS);
        let of_address = tries.and_then(|it| it.remaining_wait(FREE_ATTEMPTS, address_max, now));
        let tries = attempt.name.as_ref().and_then(|name| self.names.get(name));
        let of_name = tries.and_then(|it| it.remaining_wait(FREE_ATTEMPTS, NAME_WAIT_MAX, now));
        let of_all =
            self.total.and_then(|it| it.remaining_wait(FREE_ATTEMPTS_TOTAL, TOTAL_WAIT_MAX, now));
        // `None` is less than any wait. A refused attempt is not counted, so it does not prolong
        // the wait.
        let of_others = of_name.max(of_all);
        if let Some(wait) = of_address.max(of_others)
            && (of_address.is_some() || !is_fresh || !self.take_fresh_attempt(now))
        {
            return Err(wait);
        }
        if let Some(address) = address {
            count_failure(&mut self.addresses, address, now);
        }
        if let Some(name) = &attempt.name {
            count_failure(&mut self.names, name.clone(), now);
        }
        self.total = Some(LoginFailures::increment(self.total, now));
        Ok(())
    }

    /// Takes one of the attempts that do not wait for others; returns false if none is left.
    fn take_fresh_attempt(&mut self, now: Instant) -> bool {
        let current = self.fresh.filter(|(begun, _)| now.duration_since(*begun) < FRESH_PERIOD);
        let (begun, used) = current.unwrap_or((now, 0));
        if used == FRESH_ATTEMPTS_TOTAL {
            return false;
        }
        self.fresh = Some((begun, used + 1));
        true
    }

    /// Clears the failures of an address and a name after a correct password.
    pub(super) fn record_success(&mut self, attempt: &LoginAttempt) {
        if let Some(address) = attempt.address {
            self.addresses.remove(&network(address));
        }
        if let Some(name) = &attempt.name {
            self.names.remove(name);
        }
        // Only this attempt is taken back, because the failures of others still count.
        if let Some(all) = &mut self.total {
            all.count = all.count.saturating_sub(1);
        }
    }
}

/// Counts one more failure, with at most [`KEYS_MAX`] entries.
fn count_failure<K: Clone + Eq + Hash>(all: &mut HashMap<K, LoginFailures>, key: K, now: Instant) {
    if all.len() >= KEYS_MAX && !all.contains_key(&key) {
        let oldest = all.iter().min_by_key(|(_, tries)| tries.last);
        if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
            all.remove(&oldest);
        }
    }
    let tries = LoginFailures::increment(all.get(&key).copied(), now);
    all.insert(key, tries);
}

/// Returns the unit that one customer controls: an IPv4 address, or the /64 network of an IPv6
/// address.
fn network(address: IpAddr) -> IpAddr {
    // Mapped IPv4 addresses would all be in one /64 network.
    match address.to_canonical() {
        // All of them are this machine.
        address if address.is_loopback() => IpAddr::V4(Ipv4Addr::LOCALHOST),
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

    /// Attempt from an address, without a name.
    fn at(address: IpAddr) -> LoginAttempt {
        LoginAttempt { address: Some(address), name: None }
    }

    /// Attempt from behind a proxy.
    fn called(name: &str) -> LoginAttempt {
        LoginAttempt { address: None, name: Some(name.parse().unwrap()) }
    }

    #[test]
    fn whoever_is_wrong_waits_longer_each_time_and_others_do_not() {
        let (mut limiter, mut now) = (LoginLimiter::default(), Instant::now());
        let (one, other) = (at(address(1)), at(address(2)));
        for _ in 0..FREE_ATTEMPTS {
            limiter.begin_attempt(&one, now).unwrap();
        }
        let mut wait = WAIT_FIRST;
        for _ in 0..12 {
            assert_eq!(limiter.begin_attempt(&one, now), Err(wait));
            limiter.begin_attempt(&other, now).unwrap();
            limiter.record_success(&other);
            now += wait;
            limiter.begin_attempt(&one, now).unwrap();
            wait = (wait * 2).min(ADDRESS_WAIT_MAX);
        }
        assert_eq!(wait, ADDRESS_WAIT_MAX);
    }

    #[test]
    fn behind_a_proxy_one_name_that_is_tried_keeps_no_other_waiting() {
        let (mut limiter, mut now) = (LoginLimiter::default(), Instant::now());
        for _ in 0..FREE_ATTEMPTS {
            limiter.begin_attempt(&called("ann"), now).unwrap();
        }
        assert_eq!(limiter.begin_attempt(&called("ann"), now), Err(WAIT_FIRST));
        limiter.begin_attempt(&called("bob"), now).unwrap();
        limiter.record_success(&called("bob"));
        // However long the attack lasts, the owner of the name gets in soon.
        for _ in 0..20 {
            let wait = limiter.begin_attempt(&called("ann"), now).unwrap_err();
            assert!(wait <= NAME_WAIT_MAX);
            now += wait;
            limiter.begin_attempt(&called("ann"), now).unwrap();
        }
        assert_eq!(limiter.begin_attempt(&called("ann"), now), Err(NAME_WAIT_MAX));
        limiter.record_success(&called("ann"));
        limiter.begin_attempt(&called("ann"), now).unwrap();
    }

    #[test]
    fn many_addresses_try_one_name_hardly_faster_than_one_does() {
        let (mut limiter, now) = (LoginLimiter::default(), Instant::now());
        let ann = |number: u32| LoginAttempt {
            address: Some(address(u8::try_from(number).unwrap())),
            ..called("ann")
        };
        for number in 0..FREE_ATTEMPTS + FRESH_ATTEMPTS_TOTAL {
            limiter.begin_attempt(&ann(number), now).unwrap();
        }
        assert!(limiter.begin_attempt(&ann(100), now).is_err());
        limiter.begin_attempt(&ann(100), now + FRESH_PERIOD).unwrap();
    }

    #[test]
    fn an_attacker_who_takes_every_attempt_keeps_nobody_out_at_another_address() {
        let (mut limiter, mut now) = (LoginLimiter::default(), Instant::now());
        let ann = |last| LoginAttempt { address: Some(address(last)), ..called("ann") };
        for _ in 0..200 {
            if let Err(wait) = limiter.begin_attempt(&ann(1), now) {
                now += wait;
                limiter.begin_attempt(&ann(1), now).unwrap();
            }
        }
        for _ in 0..FRESH_ATTEMPTS {
            limiter.begin_attempt(&ann(2), now).unwrap();
        }
        assert!(limiter.begin_attempt(&ann(2), now).unwrap_err() <= NAME_WAIT_MAX);
        limiter.begin_attempt(&ann(3), now).unwrap();
    }

    #[test]
    fn wrong_passwords_from_this_machine_delay_it_by_half_a_minute_at_most() {
        let (mut limiter, mut now) = (LoginLimiter::default(), Instant::now());
        for number in 0..30_u8 {
            let one = at(IpAddr::from([127, 0, 0, number]));
            if let Err(wait) = limiter.begin_attempt(&one, now) {
                assert!(wait <= LOCAL_WAIT_MAX);
                now += wait;
                limiter.begin_attempt(&one, now).unwrap();
            }
        }
        assert!(limiter.begin_attempt(&at("::1".parse().unwrap()), now).is_err());
    }

    #[test]
    fn whoever_is_right_begins_anew_and_so_does_whoever_waited_an_hour() {
        let (mut limiter, now, one) = (LoginLimiter::default(), Instant::now(), at(address(1)));
        for _ in 0..3 * FREE_ATTEMPTS {
            limiter.begin_attempt(&one, now).unwrap();
            limiter.record_success(&one);
        }
        for _ in 0..FREE_ATTEMPTS {
            limiter.begin_attempt(&one, now).unwrap();
        }
        assert!(limiter.begin_attempt(&one, now).is_err());
        limiter.begin_attempt(&one, now + FAILURE_TTL).unwrap();
        limiter.begin_attempt(&one, now + FAILURE_TTL).unwrap();
    }

    #[test]
    fn all_together_wait_a_little_however_many_addresses_they_have() {
        let (mut limiter, mut now) = (LoginLimiter::default(), Instant::now());
        // Behind a proxy no address is fresh.
        let nobody = LoginAttempt { address: None, name: None };
        for _ in 0..FREE_ATTEMPTS_TOTAL {
            limiter.begin_attempt(&nobody, now).unwrap();
        }
        for _ in 0..20 {
            let wait = limiter.begin_attempt(&nobody, now).unwrap_err();
            assert!(wait <= TOTAL_WAIT_MAX);
            now += wait;
            limiter.begin_attempt(&nobody, now).unwrap();
        }
        assert_eq!(limiter.begin_attempt(&nobody, now), Err(TOTAL_WAIT_MAX));
        limiter.begin_attempt(&at(address(200)), now).unwrap();
    }

    #[test]
    fn more_addresses_of_one_network_are_no_way_around() {
        let (mut limiter, now) = (LoginLimiter::default(), Instant::now());
        for number in 0..u64::from(FREE_ATTEMPTS) {
            let one = format!("2001:db8::{number:x}:1").parse().unwrap();
            limiter.begin_attempt(&at(one), now).unwrap();
        }
        assert!(limiter.begin_attempt(&at("2001:db8::1".parse().unwrap()), now).is_err());
        assert!(limiter.begin_attempt(&at("2001:db8:0:1::1".parse().unwrap()), now).is_ok());
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), address(1));
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for() {
        let (mut tries, now) = (HashMap::new(), Instant::now());
        for number in 0..KEYS_MAX + 10 {
            count_failure(&mut tries, number, now + Duration::from_nanos(number as u64));
        }
        assert_eq!(tries.len(), KEYS_MAX);
        assert!(!tries.contains_key(&9) && tries.contains_key(&10), "the oldest went");
    }
}
