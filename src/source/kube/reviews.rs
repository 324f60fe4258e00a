//! Reviews by an API server: a `TokenReview` for who a token belongs to, a `SubjectAccessReview` for what a user may do.
//!
//! Nothing of a request or of the text of a response is in an error: either may have a token.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    KubeCluster,
    client::{Client, KubeClients, RequestOptions},
    status::Status,
};
use crate::auth::{Identity, IdentityDetails, ReviewAttributes, ReviewError, Reviewer, Token, TokenReviewed};

/// API server that reviews tokens and accesses.
#[derive(Debug, Clone)]
pub struct KubeReviewer {
    client: Arc<Client>,
}

/// Review with its answer.
#[derive(Deserialize)]
struct Reviewed<T> {
    status: T,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct AccessStatus {
    allowed: bool,
    denied: bool,
}

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// Time limit of the head of an answer, and of its body.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Default of the sources, so that they share connections.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(15);
/// Largest answer, which repeats the request.
const MAX_ANSWER_BYTES: usize = 1 << 20;

// === impl KubeReviewer ===

impl KubeReviewer {
    /// Returns the reviews of a cluster, over the connections that its sources with the default contact timeout use.
    pub fn new(cluster: &KubeCluster, clients: &KubeClients) -> Self {
        Self { client: clients.get(cluster, CONTACT_TIMEOUT) }
    }

    /// Checks that the configuration files of a cluster are there.
    ///
    /// # Errors
    ///
    /// The file, and the problem.
    pub fn check(cluster: &KubeCluster) -> Result<(), String> {
        super::client::check(cluster)
    }

    fn review<T: DeserializeOwned>(
        &self,
        path: &'static str,
        review: &Value,
    ) -> impl Future<Output = Result<T, ReviewError>> + Send + 'static {
        let (client, review) = (Arc::clone(&self.client), review.to_string());
        async move {
            let wish = RequestOptions { accept: "application/json", may_compress: false, timeout: ANSWER_TIMEOUT };
            let sent = client.post(path, review.into(), wish).await;
            let (access, answer) = sent.map_err(|failure| ReviewError(failure.error.to_string()))?;
            let problem = |problem: &str| ReviewError(format!("{}{path}: {problem}", access.url));
            let (head, body) = answer.into_parts();
            let body = match timeout(ANSWER_TIMEOUT, body.read(false, MAX_ANSWER_BYTES)).await {
                Ok(body) => body.map_err(|error| problem(&error))?,
                Err(_) => return Err(problem(&format!("response not complete within {ANSWER_TIMEOUT:?}"))),
            };
            if !head.status.is_success() {
                let status = Status::read(&String::from_utf8_lossy(&body));
                let error = status.error(head.status.as_u16(), &format!("{}{path}", access.url), "");
                return Err(ReviewError(error.to_string()));
            }
            let reviewed = serde_json::from_slice::<Reviewed<T>>(&body);
            Ok(reviewed.map_err(|_| problem("the response is not a review with a status"))?.status)
        }
    }
}

impl Reviewer for KubeReviewer {
    fn review_token(
        &self,
        token: &Token,
        audiences: &[String],
    ) -> BoxFuture<'static, Result<TokenReviewed, ReviewError>> {
        let review = self.review(
            TOKEN_REVIEWS,
            &json!({
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenReview",
                "spec": { "token": token.expose(), "audiences": audiences },
            }),
        );
        async move {
            let mut reviewed: TokenReviewed = review.await?;
            reviewed.is_authenticated &= !reviewed.user.user.is_empty();
            Ok(reviewed)
        }
        .boxed()
    }

    fn review_access(
        &self,
        identity: &Identity,
        attributes: ReviewAttributes,
    ) -> BoxFuture<'static, Result<bool, ReviewError>> {
        let IdentityDetails { user, groups, uid, extra, .. } = identity.details();
        let review = self.review(
            ACCESS_REVIEWS,
            &json!({
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {
                    "user": user,
                    "groups": groups,
                    "uid": uid,
                    "extra": extra,
                    "resourceAttributes": attributes,
                },
            }),
        );
        async move {
            let AccessStatus { allowed, denied } = review.await?;
            Ok(allowed && !denied)
        }
        .boxed()
    }
}
