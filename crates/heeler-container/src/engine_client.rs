//! Calls of the engine's API. Start at [`ContainerEngine::connect`].

use std::collections::BTreeMap;
use std::time::Duration;

use camino::Utf8Path;
use hyper::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

use crate::build_context::{BuildContext, BuildStream};
use crate::engine_http::{EngineError, EngineHttp, broken};
use crate::engine_reply::{
    ContainerImage, ContainerState, CreatedReply, EngineFacts, EngineKind, ImageReply, InfoReply,
    InspectReply, ListReply, ListedContainer, WaitReply,
};

/// Newest API version that is used, and the oldest that has everything.
const API_MINOR_MAX: u32 = 51;
const API_MINOR_MIN: u32 = 40;
const API_NEEDED: &str = "1.40 (Docker 19.03, Podman 3)";

/// Characters of names and filters that are not part of a path.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/').remove(b':').remove(b'@');

/// Connects to an engine and does `work` on this thread, within a time limit.
pub fn with_engine<T, F: Future<Output = Result<T, EngineError>>>(
    socket: &Utf8Path,
    time_max: Duration,
    work: impl FnOnce(ContainerEngine) -> F,
) -> Result<T, EngineError> {
    let attempt = "do its work";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| broken(attempt, error))?;
    let work = async { work(ContainerEngine::connect(socket).await?).await };
    let done = runtime.block_on(async { tokio::time::timeout(time_max, work).await });
    done.map_err(|_| broken(attempt, format!("no end within {} s", time_max.as_secs())))?
}

/// Settings of an image to build.
#[derive(Debug, Clone)]
pub struct ImageBuild<'b> {
    /// Name of the image.
    pub tag: &'b str,
    /// Network of the commands of the build: `default`, `host` or `none`.
    pub network: &'b str,
    /// Variables that exist during the build only, such as `HTTPS_PROXY`.
    pub arguments: &'b BTreeMap<String, String>,
    pub labels: &'b BTreeMap<String, String>,
}

/// Container engine of this machine.
#[derive(Debug, Clone)]
pub struct ContainerEngine {
    http: EngineHttp,
    /// Prefix of all paths, such as `/v1.41`.
    prefix: String,
    kind: EngineKind,
}

impl ContainerEngine {
    /// Asks the engine for its version of the API, and chooses one.
    pub async fn connect(socket: &Utf8Path) -> Result<ContainerEngine, EngineError> {
        let http = EngineHttp::new(socket);
        // Docker starts its helper programs before it replies to `/version`, which takes 7 ms.
        let reply = http.request(Method::GET, "/_ping", None, "reply to a ping").await?;
        let header = |name: &str| reply.headers.get(name).and_then(|value| value.to_str().ok());
        let minor = choose_api_minor(header("API-Version").unwrap_or("none"))?;
        let kind = match header("Libpod-API-Version") {
            Some(_) => EngineKind::Podman,
            None => EngineKind::Docker,
        };
        Ok(ContainerEngine { http, prefix: format!("/v1.{minor}"), kind })
    }

    pub async fn facts(&self) -> Result<EngineFacts, EngineError> {
        let info: InfoReply = self.get("/info", "tell its properties").await?;
        Ok(EngineFacts {
            kind: self.kind,
            is_rootless: info.has_option("rootless"),
            remaps_users: info.has_option("userns"),
            // Podman has no process that could end its containers.
            survives_restart: self.kind == EngineKind::Podman || info.live_restore_enabled,
            limits_memory: info.memory_limit,
            limits_processes: info.pids_limit,
            version: info.server_version,
        })
    }

    /// Returns an image; `None` if the engine lacks it.
    pub async fn image(&self, name: &str) -> Result<Option<ContainerImage>, EngineError> {
        let path = format!("/images/{}/json", escape(name));
        let found = found(self.get::<ImageReply>(&path, "look up the image").await)?;
        Ok(found.map(|ImageReply { id, config }| {
            let (env, labels) = config.map_or((None, None), |it| (it.env, it.labels));
            ContainerImage { id, env: env.unwrap_or_default(), labels: labels.unwrap_or_default() }
        }))
    }

    /// Pulls an image from its registry.
    pub async fn pull(&self, name: &str) -> Result<(), EngineError> {
        let attempt = format!("pull the image {name}");
        let path = format!("/images/create?fromImage={}", escape(&tagged_name(name)));
        let reply = self.send(Method::POST, &path, None, &attempt).await?;
        match pull_error(&reply) {
            Some(message) => Err(EngineError::Refused { attempt, status: 500, message }),
            None => Ok(()),
        }
    }

    /// Creates a container and returns its ID.
    pub async fn create(&self, name: &str, body: &Json) -> Result<String, EngineError> {
        let (path, attempt) =
            (format!("/containers/create?name={}", escape(name)), "create a container");
        let reply = self.send(Method::POST, &path, Some(body), attempt).await?;
        Ok(parse::<CreatedReply>(&reply, attempt)?.id)
    }

    pub async fn start(&self, id: &str) -> Result<(), EngineError> {
        let path = format!("/containers/{}/start", escape(id));
        self.send(Method::POST, &path, None, "start the container").await?;
        Ok(())
    }

    /// Returns the state of a container; `None` if it does not exist.
    pub async fn state(&self, id: &str) -> Result<Option<ContainerState>, EngineError> {
        let path = format!("/containers/{}/json", escape(id));
        let found = found(self.get::<InspectReply>(&path, "inspect the container").await)?;
        Ok(found.map(|InspectReply { state, image, created }| ContainerState {
            is_running: state.running,
            pid: Some(state.pid).filter(|pid| *pid > 0),
            exit_code: state.exit_code,
            error: state.error,
            image,
            created_at: created,
            finished_at: state.finished_at,
        }))
    }

    /// Kills the processes of a container, and returns when it does not run any more. One that does
    /// not exist or run is no error.
    pub async fn kill(&self, id: &str) -> Result<(), EngineError> {
        let path = format!("/containers/{}/kill", escape(id));
        match self.send(Method::POST, &path, None, "end the container").await {
            Err(error) if error.status() == Some(404) => return Ok(()),
            Err(error) if error.status() != Some(409) => return Err(error),
            _ => {}
        }
        found(self.wait(id).await).map(drop)
    }

    /// Makes an image of the file system of a container that does not run, and returns its digest.
    pub async fn commit(&self, id: &str, labels: &Json) -> Result<String, EngineError> {
        let attempt = "copy the file system of the container";
        let path = format!("/commit?container={}&pause=false", escape(id));
        let body = json!({ "Labels": labels });
        let reply = self.send(Method::POST, &path, Some(&body), attempt).await?;
        Ok(parse::<CreatedReply>(&reply, attempt)?.id)
    }

    /// Removes a container as [`ContainerEngine::remove`] does, and its image if that has this label.
    pub async fn remove_with_image(&self, id: &str, label: &str) -> Result<(), EngineError> {
        let state = self.state(id).await?;
        self.remove(id).await?;
        let Some(state) = state else { return Ok(()) };
        let image = self.image(&state.image).await?;
        match image.filter(|image| image.labels.contains_key(label)) {
            Some(image) => self.remove_image(&image.id).await,
            None => Ok(()),
        }
    }

    /// Removes an image that no container uses, with its parents that have no name. One that is used
    /// or does not exist is no error.
    pub async fn remove_image(&self, id: &str) -> Result<(), EngineError> {
        let path = format!("/images/{}", escape(id));
        match self.send(Method::DELETE, &path, None, "remove the image").await {
            Err(error) if matches!(error.status(), Some(404 | 409)) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Lists the images that have this label.
    pub async fn labelled_images(&self, label: &str) -> Result<Vec<String>, EngineError> {
        let filters = json!({ "label": [label] }).to_string();
        let path = format!("/images/json?all=true&filters={}", escape(&filters));
        let images: Vec<CreatedReply> = self.get(&path, "list images").await?;
        Ok(images.into_iter().map(|image| image.id).collect())
    }

    /// Builds an image of a context, which is a tar archive with a `Dockerfile`. `progress` gets each
    /// message of the engine.
    pub async fn build(
        &self,
        build: &ImageBuild<'_>,
        context: BuildContext,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), EngineError> {
        let attempt = format!("build the image {}", build.tag);
        let arguments = json!(build.arguments).to_string();
        let labels = json!(build.labels).to_string();
        let path = format!(
            "{}/build?t={}&rm=true&forcerm=true&networkmode={}&buildargs={}&labels={}",
            self.prefix,
            escape(build.tag),
            escape(build.network),
            escape(&arguments),
            escape(&labels),
        );
        let mut stream = BuildStream::default();
        let on_part = &mut |part: &[u8]| stream.add(part, progress);
        self.http.upload(&path, context, &attempt, on_part).await?;
        match stream.finish() {
            Some(message) => Err(EngineError::Refused { attempt, status: 500, message }),
            None => Ok(()),
        }
    }

    /// Waits until a container does not run any more, and returns its exit code.
    pub async fn wait(&self, id: &str) -> Result<i64, EngineError> {
        let (path, attempt) =
            (format!("/containers/{}/wait?condition=not-running", escape(id)), "wait");
        let reply = self.send(Method::POST, &path, None, attempt).await?;
        Ok(parse::<WaitReply>(&reply, attempt)?.status_code)
    }

    /// Kills and removes a container, and returns when it is gone. One that does not exist is no
    /// error.
    pub async fn remove(&self, id: &str) -> Result<(), EngineError> {
        let path = format!("/containers/{}?force=true&v=true", escape(id));
        match self.send(Method::DELETE, &path, None, "remove the container").await {
            Err(error) if error.status() == Some(404) => Ok(()),
            // The engine is removing it already.
            Err(error) if error.status() == Some(409) => {
                let path = format!("/containers/{}/wait?condition=removed", escape(id));
                found(self.send(Method::POST, &path, None, "remove the container").await).map(drop)
            }
            result => result.map(drop),
        }
    }

    /// Lists the containers that have all of these labels; a label is a name, or `name=value`.
    pub async fn list(&self, labels: &[String]) -> Result<Vec<ListedContainer>, EngineError> {
        let filters = json!({ "label": labels }).to_string();
        let path = format!("/containers/json?all=true&filters={}", escape(&filters));
        let found: Vec<ListReply> = self.get(&path, "list containers").await?;
        let listed = found.into_iter().map(|it| ListedContainer {
            id: it.id,
            name: it.names.first().map_or("", |name| name.trim_start_matches('/')).to_owned(),
            is_running: it.state == "running",
            created: it.created,
            labels: it.labels.unwrap_or_default(),
        });
        Ok(listed.collect())
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, attempt: &str) -> Result<T, EngineError> {
        parse(&self.send(Method::GET, path, None, attempt).await?, attempt)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Json>,
        attempt: &str,
    ) -> Result<Vec<u8>, EngineError> {
        let path = format!("{}{path}", self.prefix);
        Ok(self.http.request(method, &path, body, attempt).await?.body)
    }
}

fn escape(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

fn parse<T: DeserializeOwned>(body: &[u8], attempt: &str) -> Result<T, EngineError> {
    serde_json::from_slice(body).map_err(|error| broken(attempt, error))
}

/// Turns the refusal of something that does not exist into `None`.
fn found<T>(result: Result<T, EngineError>) -> Result<Option<T>, EngineError> {
    match result {
        Err(error) if error.status() == Some(404) => Ok(None),
        result => result.map(Some),
    }
}

fn choose_api_minor(offered: &str) -> Result<u32, EngineError> {
    let minor = offered.strip_prefix("1.").and_then(|minor| minor.parse::<u32>().ok());
    match minor {
        Some(minor) if minor >= API_MINOR_MIN => Ok(minor.min(API_MINOR_MAX)),
        _ => Err(EngineError::Version { found: offered.to_owned(), needed: API_NEEDED }),
    }
}

/// Adds the default tag to a name without one: without a tag, an engine pulls all of them.
fn tagged_name(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    match last.contains([':', '@']) {
        true => name.to_owned(),
        false => format!("{name}:latest"),
    }
}

/// Returns the failure in a stream of progress, which begins before the outcome is known.
fn pull_error(stream: &[u8]) -> Option<String> {
    let lines = stream.split(|byte| *byte == b'\n');
    let mut errors = lines.filter_map(|line| {
        let line: Json = serde_json::from_slice(line).ok()?;
        Some(line.get("error")?.as_str()?.to_owned())
    });
    errors.next_back()
}

#[cfg(test)]
mod tests;
