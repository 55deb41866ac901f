//! Routes of a resource of the API.

use utoipa_axum::router::OpenApiRouter;

use crate::server_state::SharedServerState;

/// Routes of one resource, grouped by the scope they need.
#[derive(Default)]
pub(crate) struct ApiRoutes {
    pub(crate) read: OpenApiRouter<SharedServerState>,
    /// Scope `read`, with replies that are read in batches and have an ETag already.
    pub(crate) batched: OpenApiRouter<SharedServerState>,
    /// Scope `read`, with the same reply for every caller: identical concurrent reads are
    /// coalesced.
    pub(crate) shared: OpenApiRouter<SharedServerState>,
    /// Like `shared`, for reads that take as long as a transcript has rows. They have a coalescer
    /// of their own, so that other reads do not wait for them.
    pub(crate) shared_logs: OpenApiRouter<SharedServerState>,
    pub(crate) operate: OpenApiRouter<SharedServerState>,
    pub(crate) admin: OpenApiRouter<SharedServerState>,
}

impl ApiRoutes {
    pub(super) fn merge(self, more: ApiRoutes) -> ApiRoutes {
        ApiRoutes {
            read: self.read.merge(more.read),
            batched: self.batched.merge(more.batched),
            shared: self.shared.merge(more.shared),
            shared_logs: self.shared_logs.merge(more.shared_logs),
            operate: self.operate.merge(more.operate),
            admin: self.admin.merge(more.admin),
        }
    }
}
