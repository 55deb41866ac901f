//! Git remotes with credentials that the agent does not have.
//!
//! The agent's git sends its calls for a configured remote to the proxy, without a credential. The
//! proxy adds it, for this remote and the calls of git's protocol only, and follows no redirect. Start
//! at [`GitRoute`].

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, COOKIE, HeaderValue, WWW_AUTHENTICATE};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Response, StatusCode};
use url::Url;

use crate::body::ProxyBody;
use crate::decision::DenialReason;
use crate::gate::EgressGate;
use crate::meter::ActivityMeter;
use crate::passing::{denied, pass_reply, rewrite, unavailable};
use crate::upstream::{ApiRouteError, UpstreamServer};

/// Beginning of the paths that lead to git remotes. The host and path of the remote follow.
pub const GIT_PATH: &str = "/.heeler-git/";

/// Git remote and its credential.
#[derive(Clone)]
pub struct GitRemoteAccess {
    /// Address of the repository, without `.git`.
    pub url: Url,
    pub username: String,
    pub token: String,
}

impl fmt::Debug for GitRemoteAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GitRemoteAccess({})", self.url)
    }
}

/// Ways to git remotes.
pub struct GitRoute {
    remotes: Vec<GitRemoteRoute>,
}

struct GitRemoteRoute {
    server: UpstreamServer,
    /// Host, port and path, as in the paths of the agent's calls.
    place: String,
    path: String,
    authorization: HeaderValue,
}

/// Call of a git program.
struct GitCall<'r> {
    remote: &'r GitRemoteRoute,
    target: PathAndQuery,
}

impl GitRoute {
    /// Prepares the ways to remotes. `extra_roots` are certificates in PEM, besides those of public
    /// authorities.
    pub fn new(
        remotes: &[GitRemoteAccess],
        extra_roots: Option<&[u8]>,
    ) -> Result<GitRoute, ApiRouteError> {
        let route = |remote: &GitRemoteAccess| {
            let server = UpstreamServer::new(&remote.url, extra_roots)?;
            let path = remote.url.path().trim_end_matches('/').to_owned();
            let place = format!("{}{path}", server.authority);
            let login = STANDARD.encode(format!("{}:{}", remote.username, remote.token));
            let mut authorization = HeaderValue::from_str(&format!("Basic {login}"))
                .expect("base64 has only characters of headers");
            authorization.set_sensitive(true);
            Ok(GitRemoteRoute { server, place, path, authorization })
        };
        Ok(GitRoute { remotes: remotes.iter().map(route).collect::<Result<_, _>>()? })
    }

    /// Forwards a call.
    pub(crate) async fn call(
        &self,
        mut request: Request<Incoming>,
        gate: &EgressGate,
        meter: &ActivityMeter,
    ) -> Response<ProxyBody> {
        let Some(GitCall { remote, target }) = self.find(request.method(), request.uri()) else {
            // The path is the agent's text, so it is not repeated.
            gate.report("(git)", 0, Some(DenialReason::GitRemote)).await;
            return denied(&DenialReason::GitRemote, "git");
        };
        let GitRemoteRoute { server, place, authorization, .. } = remote;
        gate.report(&server.host.to_string(), server.port, None).await;
        let headers = request.headers_mut();
        headers.remove(COOKIE);
        headers.insert(AUTHORIZATION, authorization.clone());
        let Some(request) = rewrite(request, Some(target), &server.authority, meter) else {
            return unavailable(StatusCode::BAD_REQUEST, place, "the request is malformed");
        };
        let mut connection = match server.connect(gate, place).await {
            Ok(connection) => connection,
            Err(reply) => return *reply,
        };
        match connection.sender.send_request(request).await {
            Ok(reply) if reply.status().is_redirection() => unavailable(
                StatusCode::FORBIDDEN,
                place,
                "the remote answers with a redirect, which is not followed; write its new address in \
                 `sandbox.git`",
            ),
            // Git would ask for a password, which the agent does not have.
            Ok(reply) if reply.status() == StatusCode::UNAUTHORIZED => unavailable(
                StatusCode::FORBIDDEN,
                place,
                "the remote does not accept the credential of `sandbox.git`",
            ),
            Ok(mut reply) => {
                reply.headers_mut().remove(WWW_AUTHENTICATE);
                pass_reply(reply, meter, |body| body.driver = Some(connection.driver))
            }
            Err(error) => {
                tracing::debug!(%error, "a call of git could not be forwarded");
                unavailable(StatusCode::BAD_GATEWAY, place, "the remote gave no valid reply")
            }
        }
    }

    /// Returns the remote of a call, if it is one of git's protocol.
    fn find(&self, method: &Method, uri: &hyper::Uri) -> Option<GitCall<'_>> {
        let rest = uri.path().strip_prefix(GIT_PATH)?;
        self.remotes.iter().find_map(|remote| {
            let rest = rest.strip_prefix(remote.place.as_str())?;
            let (suffix, call) = match rest.strip_prefix(".git") {
                Some(call) => (".git", call),
                None => ("", rest),
            };
            let service = match (method, call, uri.query()) {
                (&Method::GET, "/info/refs", Some(query)) => query.strip_prefix("service=")?,
                (&Method::POST, call, None) => call.strip_prefix('/')?,
                _ => return None,
            };
            if !matches!(service, "git-upload-pack" | "git-receive-pack") {
                return None;
            }
            let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
            let target = format!("{}{suffix}{call}{query}", remote.path).parse().ok()?;
            Some(GitCall { remote, target })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_of_git_for_the_repository_itself_get_the_credential() {
        let remote = |url: &str| GitRemoteAccess {
            url: url.parse().unwrap(),
            username: "x-access-token".to_owned(),
            token: "t".to_owned(),
        };
        let remotes = [remote("https://git.example/acme/app"), remote("http://127.0.0.1:81/b")];
        let route = GitRoute::new(&remotes, None).unwrap();
        let find = |method: Method, path: &str| -> Option<String> {
            let uri = format!("{GIT_PATH}{path}").parse().unwrap();
            route.find(&method, &uri).map(|call| call.target.to_string())
        };
        let refs = "info/refs?service=git-upload-pack";
        for (method, path, expected) in [
            (Method::GET, format!("git.example/acme/app/{refs}"), "/acme/app/"),
            (Method::GET, format!("git.example/acme/app.git/{refs}"), "/acme/app.git/"),
        ] {
            assert_eq!(find(method, &path), Some(format!("{expected}{refs}")), "{path}");
        }
        let push = "127.0.0.1:81/b/git-receive-pack";
        assert_eq!(find(Method::POST, push).as_deref(), Some("/b/git-receive-pack"));
        for (method, path) in [
            (Method::GET, format!("git.example/acme/app-private/{refs}")),
            (Method::GET, format!("git.example/acme/app/../other/{refs}")),
            (Method::GET, format!("git.example/acme/app/%2e%2e/other/{refs}")),
            (Method::GET, format!("git.example/acme/{refs}")),
            (Method::GET, format!("evil.example/acme/app/{refs}")),
            (Method::GET, format!("git.example:444/acme/app/{refs}")),
            (Method::GET, format!("git.example/acme/app/{refs}&x=1")),
            (Method::GET, "git.example/acme/app/info/refs".to_owned()),
            (Method::GET, "git.example/acme/app/settings".to_owned()),
            (Method::POST, "git.example/acme/app/info/lfs/objects/batch".to_owned()),
            (Method::POST, "git.example/acme/app/git-upload-archive".to_owned()),
            (Method::DELETE, "git.example/acme/app/git-receive-pack".to_owned()),
            (Method::POST, "git.example/acme/app/git-receive-pack?x".to_owned()),
        ] {
            assert_eq!(find(method, &path), None, "{path}");
        }
    }
}
