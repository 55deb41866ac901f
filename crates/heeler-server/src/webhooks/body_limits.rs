//! Limits on bodies of callers that are not authenticated yet: in number, in bytes and in time.
//!
//! A sender that is slow on purpose must not keep others out. So when there is no room for one more
//! body, the oldest body of the address that has the most is cut off. Start at [`BodyLimiter`].

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use http_body_util::BodyExt as _;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::extractors::BODY_WAIT;
use crate::problem::ProblemDetails;

/// Most bodies received at once.
pub(super) const CONCURRENT_BODIES_MAX: usize = 64;

/// Most bodies received at once from one address. All callers of a proxy have one address.
pub(super) const BODIES_PER_ADDRESS_MAX: usize = 32;

/// Most bytes of incomplete bodies.
pub(super) const BODIES_BYTES_MAX: usize = 64 << 20;

/// Most bytes of incomplete bodies from one address.
pub(super) const ADDRESS_BYTES_MAX: usize = 32 << 20;

/// Time that a body gets before it may be cut off in favour of another.
const UNDISTURBED_TIME: Duration = Duration::from_secs(1);

/// Time before the minimum rate counts.
const RATE_GRACE: Duration = Duration::from_secs(5);

/// Minimum rate of a body, in bytes per second.
const BYTES_PER_SECOND_MIN: usize = 1 << 10;

/// Longest wait for room.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(5);

/// Bodies that are being received.
#[derive(Debug, Clone, Default)]
pub(super) struct BodyLimiter(Arc<BodyTable>);

#[derive(Debug, Default)]
struct BodyTable {
    open: Mutex<OpenBodies>,
    freed: Notify,
}

/// Open bodies, oldest first.
#[derive(Debug, Default)]
struct OpenBodies {
    next: u64,
    bodies: BTreeMap<u64, OpenBody>,
}

#[derive(Debug)]
struct OpenBody {
    network: IpAddr,
    since: Instant,
    bytes: usize,
    cut: Arc<Notify>,
}

/// Admission of a body.
enum BodyAdmission {
    Admitted(u64, Arc<Notify>),
    /// There may be room at this time.
    NotBefore(Instant),
}

impl OpenBodies {
    /// Admits a body, if necessary in place of another one.
    fn try_admit(&mut self, network: IpAddr, now: Instant) -> BodyAdmission {
        let count = |of: IpAddr| self.bodies.values().filter(|body| body.network == of).count();
        let crowded = if count(network) >= BODIES_PER_ADDRESS_MAX {
            Some(network)
        } else if self.bodies.len() >= CONCURRENT_BODIES_MAX {
            self.bodies.values().map(|body| body.network).max_by_key(|&of| count(of))
        } else {
            None
        };
        if let Some(crowded) = crowded {
            let oldest = self.bodies.iter().find(|(_, body)| body.network == crowded);
            let (&id, body) = oldest.expect("an address with too many bodies has one");
            let until = body.since + UNDISTURBED_TIME;
            if until > now {
                return BodyAdmission::NotBefore(until);
            }
            if let Some(body) = self.bodies.remove(&id) {
                body.cut.notify_one();
            }
        }
        let (id, cut) = (self.next, Arc::new(Notify::new()));
        self.next += 1;
        self.bodies.insert(id, OpenBody { network, since: now, bytes: 0, cut: Arc::clone(&cut) });
        BodyAdmission::Admitted(id, cut)
    }

    /// Counts received bytes; returns false if there are too many.
    fn add_bytes(&mut self, id: u64, bytes: usize) -> bool {
        // A body that was cut off meanwhile gets no more room.
        let Some(body) = self.bodies.get_mut(&id) else { return false };
        body.bytes += bytes;
        let network = body.network;
        let (mut all, mut own) = (0, 0);
        for body in self.bodies.values() {
            all += body.bytes;
            own += if body.network == network { body.bytes } else { 0 };
        }
        all <= BODIES_BYTES_MAX && own <= ADDRESS_BYTES_MAX
    }
}

impl BodyLimiter {
    /// Receives a body of at most `bytes_max` bytes when there is room for it.
    pub(super) async fn read(
        &self,
        network: IpAddr,
        body: Body,
        bytes_max: usize,
    ) -> Result<Bytes, ProblemDetails> {
        let share = tokio::time::timeout(ROOM_WAIT_MAX, self.acquire(network)).await;
        share.map_err(|_| too_many_problem())?.read(body, bytes_max).await
    }

    async fn acquire(&self, network: IpAddr) -> BodyShare {
        loop {
            // Registered before the check, so that no release in between is missed.
            let freed = self.0.freed.notified();
            let until = match self.lock().try_admit(network, Instant::now()) {
                BodyAdmission::Admitted(id, cut) => {
                    return BodyShare { limiter: self.clone(), id, cut };
                }
                BodyAdmission::NotBefore(until) => until,
            };
            tokio::select! {
                () = freed => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, OpenBodies> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Share of one body, released when dropped.
struct BodyShare {
    limiter: BodyLimiter,
    id: u64,
    cut: Arc<Notify>,
}

impl BodyShare {
    async fn read(self, mut body: Body, bytes_max: usize) -> Result<Bytes, ProblemDetails> {
        let begun = Instant::now();
        let mut received = Vec::new();
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                () = self.cut.notified() => return Err(too_many_problem()),
                () = tokio::time::sleep_until(begun + allowed_time(received.len())) => {
                    return Err(too_slow_problem());
                }
            };
            let Some(frame) = frame else { return Ok(received.into()) };
            let frame = frame.map_err(|error| {
                ProblemDetails::bad_request(format!("the request was cut off: {error}"))
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if received.len() + data.len() > bytes_max {
                let detail = format!("the request is longer than {bytes_max} bytes");
                let code = StatusCode::PAYLOAD_TOO_LARGE;
                return Err(ProblemDetails::new(code, "too-large", detail));
            }
            if !self.limiter.lock().add_bytes(self.id, data.len()) {
                return Err(too_many_problem());
            }
            received.extend_from_slice(&data);
        }
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.limiter.lock().bodies.remove(&self.id);
        self.limiter.0.freed.notify_waiters();
    }
}

/// Returns the time within which a body of these bytes must have got its next ones.
fn allowed_time(received: usize) -> Duration {
    let seconds = u64::try_from(received / BYTES_PER_SECOND_MIN).unwrap_or(u64::MAX);
    RATE_GRACE.saturating_add(Duration::from_secs(seconds)).min(BODY_WAIT)
}

fn too_slow_problem() -> ProblemDetails {
    let detail = format!("the request arrives with less than {BYTES_PER_SECOND_MIN} bytes/s");
    ProblemDetails::new(StatusCode::REQUEST_TIMEOUT, "too-slow", detail)
}

pub(super) fn too_many_problem() -> ProblemDetails {
    let detail = "too many calls are being processed";
    ProblemDetails::new(StatusCode::TOO_MANY_REQUESTS, "too-many", detail)
        .with_hint("try again later")
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([203, 0, 113, last])
    }

    /// A body that sends one byte each second and never ends.
    fn drip() -> Body {
        Body::from_stream(stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), ()))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_drips_is_cut_off_by_its_rate() {
        let (limiter, begun) = (BodyLimiter::default(), Instant::now());
        let problem = limiter.read(address(1), drip(), 1 << 20).await.unwrap_err();
        assert_eq!(problem.status, 408);
        assert_eq!(begun.elapsed().as_secs(), RATE_GRACE.as_secs());
        assert!(limiter.lock().bodies.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_bodies_of_one_address_keep_nobody_out_not_even_from_that_address() {
        let limiter = BodyLimiter::default();
        for _ in 0..2 * CONCURRENT_BODIES_MAX {
            let limiter = limiter.clone();
            tokio::spawn(async move { drop(limiter.read(address(1), drip(), 1 << 20).await) });
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(limiter.lock().bodies.len(), BODIES_PER_ADDRESS_MAX);
        let begun = Instant::now();
        limiter.read(address(2), Body::from("real"), 1 << 20).await.unwrap();
        assert!(begun.elapsed() < Duration::from_millis(10), "another address need not wait");
        limiter.read(address(1), Body::from("real"), 1 << 20).await.unwrap();
        assert!(begun.elapsed() <= ROOM_WAIT_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn many_addresses_lose_their_oldest_body_to_a_new_one() {
        let limiter = BodyLimiter::default();
        for number in 0..CONCURRENT_BODIES_MAX {
            let (limiter, number) = (limiter.clone(), u8::try_from(number).unwrap());
            tokio::spawn(async move { drop(limiter.read(address(number), drip(), 9).await) });
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        let begun = Instant::now();
        limiter.read(address(200), Body::from("real"), 9).await.unwrap();
        assert!(begun.elapsed() <= UNDISTURBED_TIME);
    }

    #[test]
    fn incomplete_bodies_have_a_limit_of_bytes_in_total_and_by_address() {
        let mut open = OpenBodies::default();
        let mut admit = |network| match open.try_admit(network, Instant::now()) {
            BodyAdmission::Admitted(id, _) => id,
            BodyAdmission::NotBefore(_) => panic!("there is room"),
        };
        let ids = [1, 1, 2, 3].map(|last| admit(address(last)));
        assert!(open.add_bytes(ids[0], ADDRESS_BYTES_MAX));
        assert!(!open.add_bytes(ids[1], 1));
        assert!(open.add_bytes(ids[2], BODIES_BYTES_MAX - ADDRESS_BYTES_MAX - 1));
        assert!(!open.add_bytes(ids[3], 1));
    }
}
