//! Base of the OpenAPI description: everything that applies to all routes.

use utoipa::openapi::extensions::ExtensionsBuilder;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{ContentBuilder, OpenApi as Description, Ref, RefOr, ResponseBuilder};
use utoipa::{Modify, OpenApi};

use crate::extractors::{IDEMPOTENCY_KEY_HEADER, KEY_CHARS_MAX};
use crate::problem::ProblemDetails;
use heeler_model::AccessScope;

/// Extension that names the scope a route needs.
const SCOPE: &str = "x-heeler-scope";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Heeler",
        description = "Everything that the command line can do, over HTTP. IDs may be shortened to a \
            unique prefix. Lists are paged: `next` of a page is `before` of the following one. GET replies \
            have an ETag. A write with an Idempotency-Key is executed once, even if it is sent again.",
        version = "1"
    ),
    components(schemas(ProblemDetails)),
    modifiers(&SecuritySchemes),
)]
struct OpenApiDocument;

/// Adds the authentication schemes to the description.
struct SecuritySchemes;

impl Modify for SecuritySchemes {
    fn modify(&self, description: &mut Description) {
        let components = description.components.get_or_insert_default();
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("A token of `heeler token create`, or the one of `web.token_file`."));
        components.add_security_scheme("token", SecurityScheme::Http(bearer.build()));
        let cookie = ApiKeyValue::with_description(
            "heeler-7878",
            "Login cookie of a browser, named after the port; writes also need the header x-heeler-csrf.",
        );
        components.add_security_scheme("cookie", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
    }
}

/// Returns the description without routes.
pub(super) fn base_document() -> Description {
    OpenApiDocument::openapi()
}

/// Adds scope, security, error reply, ETag and idempotency key to the routes of one scope.
pub(super) fn document_scope(description: &mut Description, scope: AccessScope) {
    let word = match scope {
        AccessScope::Read => "read",
        AccessScope::Operate => "operate",
        AccessScope::Admin => "admin",
    };
    for item in description.paths.paths.values_mut() {
        for (operation, is_read) in operations(item) {
            // Handlers of different resources have the same function name.
            let tag = operation.tags.iter().flatten().next().cloned().unwrap_or_default();
            let name = operation.operation_id.take().unwrap_or_default();
            operation.operation_id = Some(format!("{tag}.{name}"));
            let extensions = ExtensionsBuilder::new().add(SCOPE, word).build();
            operation.extensions.get_or_insert_default().merge(extensions);
            operation.security = Some(vec![
                SecurityRequirement::new::<_, [&str; 0], &str>("token", []),
                SecurityRequirement::new::<_, [&str; 0], &str>("cookie", []),
            ]);
            for reply in operation.responses.responses.values_mut() {
                if let RefOr::T(reply) = reply {
                    "Successful reply.".clone_into(&mut reply.description);
                }
            }
            operation.responses.responses.insert("default".to_owned(), problem_response());
            match is_read {
                true => document_etag(operation),
                // Replies with a new secret are not stored for replay, so they take no idempotency
                // key.
                false if tag == "access" => {}
                false => document_idempotency_key(operation),
            }
        }
    }
}

/// Lists the operations of a path; the flag is true for reads.
fn operations(item: &mut PathItem) -> impl Iterator<Item = (&mut Operation, bool)> {
    let writes = [&mut item.put, &mut item.post, &mut item.delete].into_iter().flatten();
    item.get.iter_mut().map(|get| (get, true)).chain(writes.map(|write| (write, false)))
}

fn problem_response() -> RefOr<utoipa::openapi::Response> {
    let content =
        ContentBuilder::new().schema(Some(Ref::from_schema_name("ProblemDetails"))).build();
    let response = ResponseBuilder::new().description("Error.");
    response.content("application/problem+json", content).build().into()
}

fn string_schema() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::Type(Type::String))
}

/// Documents the ETag of a read.
fn document_etag(operation: &mut Operation) {
    let Some(RefOr::T(reply)) = operation.responses.responses.get_mut("200") else { return };
    if !reply.content.contains_key("application/json") {
        return;
    }
    let tag = HeaderBuilder::new()
        .schema(Some(string_schema()))
        .description(Some("Identifies the content of the reply."));
    reply.headers.insert("ETag".to_owned(), tag.build().into());
    let same = ResponseBuilder::new().description("The reply has not changed.").build();
    operation.responses.responses.insert("304".to_owned(), same.into());
    let parameter = ParameterBuilder::new()
        .name("If-None-Match")
        .parameter_in(ParameterIn::Header)
        .description(Some("ETag of the reply that the client has."))
        .schema(Some(string_schema()));
    operation.parameters.get_or_insert_default().push(parameter.build().into());
}

/// Documents the Idempotency-Key header of a write.
fn document_idempotency_key(operation: &mut Operation) {
    let name = string_schema().min_length(Some(1)).max_length(Some(KEY_CHARS_MAX));
    let parameter = ParameterBuilder::new()
        .name(IDEMPOTENCY_KEY_HEADER)
        .parameter_in(ParameterIn::Header)
        .description(Some(
            "Unique key of this request. Sent again within a day, the request is not executed again and \
             gets the first reply. A different request with the same key is rejected.",
        ))
        .schema(Some(name.pattern(Some("^[!-~]+$"))));
    operation.parameters.get_or_insert_default().push(parameter.build().into());
}
