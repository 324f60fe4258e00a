//! Reviews by a scripted API server.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc};

use axum::{Router, body::to_bytes, extract::Request};
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;
use crate::auth::{Identity, IdentityDetails, ReviewAttributes, Reviewer, Token, TokenReviewed};

/// Scripted answers, and the requests that they were for.
#[derive(Clone, Default)]
struct Reviews {
    answers: Arc<Mutex<VecDeque<(u16, String)>>>,
    asked: Arc<Mutex<Vec<(String, HeaderMap, Value)>>>,
}

const SECRET: &str = "canary.secret.token";

impl Reviews {
    async fn listen(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let this = self.clone();
        let router = Router::new().fallback(move |request: Request| {
            let this = this.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = serde_json::from_slice(&to_bytes(body, 1 << 20).await.unwrap()).unwrap();
                this.asked.lock().push((format!("{} {}", head.method, head.uri), head.headers, body));
                let (code, text) = this.answers.lock().pop_front().unwrap();
                (StatusCode::from_u16(code).unwrap(), text)
            }
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    fn answer(&self, code: u16, body: &impl ToString) {
        self.answers.lock().push_back((code, body.to_string()));
    }
}

async fn reviewer(reviews: &Reviews) -> (KubeReviewer, tempfile::TempPath) {
    let path = kubeconfig(&format!("http://{}", reviews.listen().await), "token: of-this-server");
    let cluster = KubeCluster { kubeconfig: Some(PathBuf::from(&*path)), context: None };
    (KubeReviewer::new(&cluster, &KubeClients::default()), path)
}

fn token() -> Token {
    Token::from_headers([format!("Bearer {SECRET}").as_bytes()]).unwrap().unwrap()
}

fn caller() -> Identity {
    Identity::new(IdentityDetails {
        user: "system:serviceaccount:shop:web".to_owned(),
        groups: vec!["system:authenticated".to_owned()],
        uid: "u-1".to_owned(),
        extra: [("example.com/pod".to_owned(), vec!["web-0".to_owned()])].into(),
        expires: None,
    })
}

#[tokio::test]
async fn a_token_review_sends_the_token_with_its_audiences_and_returns_the_user() {
    let reviews = Reviews::default();
    let (reviewer, _kubeconfig) = reviewer(&reviews).await;
    let user = json!({
        "username": "system:serviceaccount:shop:web", "uid": "u-1", "groups": ["system:authenticated"],
        "extra": {"example.com/pod": ["web-0"]},
    });
    reviews.answer(201, &json!({"status": {"authenticated": true, "user": user, "audiences": ["informerd"]}}));
    let answer = reviewer.review_token(&token(), &["informerd".to_owned()]).await.unwrap();
    let audiences = vec!["informerd".to_owned()];
    assert_eq!(answer, TokenReviewed { is_authenticated: true, user: caller().details().clone(), audiences });
    let (target, headers, body) = reviews.asked.lock().remove(0);
    assert_eq!(target, "POST /apis/authentication.k8s.io/v1/tokenreviews");
    assert_eq!(
        (&headers["content-type"], &headers["authorization"]),
        (&"application/json".parse().unwrap(), &"Bearer of-this-server".parse().unwrap())
    );
    let spec = json!({"token": SECRET, "audiences": ["informerd"]});
    assert_eq!(body, json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}));

    for status in [json!({"error": "invalid bearer token"}), json!({"authenticated": true}), json!({})] {
        reviews.answer(201, &json!({ "status": status }));
        assert!(!reviewer.review_token(&token(), &[]).await.unwrap().is_authenticated, "{status}");
    }
}

#[tokio::test]
async fn an_access_review_is_on_behalf_of_the_caller() {
    let reviews = Reviews::default();
    let (reviewer, _kubeconfig) = reviewer(&reviews).await;
    let attributes = ReviewAttributes {
        verb: "list".to_owned(),
        group: "apps".to_owned(),
        version: "v1".to_owned(),
        resource: "deployments".to_owned(),
        namespace: "shop".to_owned(),
        ..ReviewAttributes::default()
    };
    for (status, is_allowed) in [
        (json!({"allowed": true}), true),
        (json!({"allowed": false, "reason": "x"}), false),
        (json!({"allowed": true, "denied": true}), false),
        (json!({"evaluationError": "x"}), false),
    ] {
        reviews.answer(201, &json!({ "status": status }));
        assert_eq!(reviewer.review_access(&caller(), attributes.clone()).await, Ok(is_allowed), "{status}");
    }
    let (target, _, body) = reviews.asked.lock().remove(0);
    assert_eq!(target, "POST /apis/authorization.k8s.io/v1/subjectaccessreviews");
    let resource = json!({
        "verb": "list", "group": "apps", "version": "v1", "resource": "deployments", "subresource": "",
        "namespace": "shop", "name": "",
    });
    let spec = json!({
        "user": "system:serviceaccount:shop:web", "uid": "u-1", "groups": ["system:authenticated"],
        "extra": {"example.com/pod": ["web-0"]}, "resourceAttributes": resource,
    });
    assert_eq!(body["spec"], spec);
}

#[tokio::test]
async fn a_failed_review_is_an_error_without_the_token() {
    let reviews = Reviews::default();
    let (reviewer, _kubeconfig) = reviewer(&reviews).await;
    let status = json!({"reason": "Forbidden", "message": format!("no {SECRET}"), "code": 403});
    let echo = format!("<html>{SECRET}");
    for (code, body, expected) in [
        (403, status.to_string(), "HTTP 403; grant the role that `informerd rbac` prints"),
        (500, echo.clone(), "HTTP 500"),
        (503, String::new(), "HTTP 503"),
        (201, echo, "the response is not a review with a status"),
        (201, json!({"spec": {"token": SECRET}}).to_string(), "the response is not a review with a status"),
        (201, json!({"status": {"authenticated": SECRET}}).to_string(), "the response is not a review with a status"),
        (
            201,
            json!({"status": {"authenticated": true, "user": {"username": "x".repeat(2 << 20)}}}).to_string(),
            "response too large (limit: 1048576 bytes)",
        ),
    ] {
        reviews.answer(code, &body);
        let problem = reviewer.review_token(&token(), &[]).await.unwrap_err().to_string();
        let end = format!("/apis/authentication.k8s.io/v1/tokenreviews: {expected}");
        assert!(
            problem.contains("http://127.0.0.1:") && problem.ends_with(&end) && !problem.contains(SECRET),
            "{problem}"
        );
    }
    assert!(!format!("{reviewer:?}").contains(SECRET));
}
