//! Bodies of requests and replies, and headers that belong to one connection only.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, HeaderMap, HeaderName};
use tokio_util::task::AbortOnDropHandle;

use crate::meter::ActivityMeter;
use crate::usage::ReplyCounter;

/// Body of a request or reply of the proxy.
pub(crate) type ProxyBody = UnsyncBoxBody<Bytes, hyper::Error>;

/// Returns a body with a text.
pub(crate) fn text_body(text: String) -> ProxyBody {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}

/// Body that passes through the proxy.
pub(crate) struct PassingBody {
    body: Incoming,
    meter: ActivityMeter,
    /// Counts the tokens of a reply of the API.
    pub(crate) counter: Option<ReplyCounter>,
    /// Drives the connection that the body comes from.
    pub(crate) driver: Option<AbortOnDropHandle<()>>,
}

impl PassingBody {
    pub(crate) fn new(body: Incoming, meter: ActivityMeter) -> PassingBody {
        PassingBody { body, meter, counter: None, driver: None }
    }
}

impl Body for PassingBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.meter.record();
        match &frame {
            Some(Ok(frame)) => {
                if let (Some(data), Some(counter)) = (frame.data_ref(), &mut self.counter) {
                    counter.read(data);
                }
            }
            Some(Err(_)) | None => drop(self.counter.take()),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Headers that are meant for the next program only, by HTTP and by custom.
const HOP_HEADERS: [&str; 10] = [
    "connection",
    "expect",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Removes the headers that belong to one connection. The length of a body stays: it is the one that
/// was used to read it.
pub(crate) fn remove_hop_headers(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    // `Connection: host` must not remove a header that routes the request.
    for name in named.iter().filter(|name| !matches!(name.as_str(), "host" | "content-length")) {
        headers.remove(name);
    }
    for name in HOP_HEADERS {
        headers.remove(name);
    }
}
