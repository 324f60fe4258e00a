use super::*;

/// Checks that a pipe which breaks after an answer is no sign of TLS.
#[cfg(feature = "server")]
#[tokio::test]
async fn a_connection_that_has_worked_has_no_hint_about_tls() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: ServerAddress = listener.local_addr().unwrap().to_string().parse().unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    let server = tonic::transport::Server::builder().add_service(health);
    tokio::spawn(server.serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener)));
    let mut client = Client::connect(&address).await.unwrap();
    let broken = || Status::from_error(Box::new(std::io::Error::from(std::io::ErrorKind::BrokenPipe)));
    assert!(client.error(&broken()).to_string().contains("use https://"));
    // There is no such service, which is an answer, too.
    assert_eq!(client.clone().resources().await.unwrap_err().code(), tonic::Code::Unimplemented);
    assert!(!client.error(&broken()).to_string().contains("use https://"));
    client.drop_connection();
    assert!(!client.error(&broken()).to_string().contains("use https://"));
}

/// The first chunk has the namespaces, and the last one the failures.
#[tokio::test]
async fn a_list_has_what_its_first_and_its_last_chunk_have() {
    let client = Client::connect_lazy(&"http://127.0.0.1:1".parse().unwrap()).unwrap();
    let chunk = || pb::ListResponse { resource_version: "a.1".to_owned(), ..Default::default() };
    let namespaces = vec!["shop".to_owned()];
    let errors = Some(pb::ExpressionErrors { failed: 1, ..Default::default() });
    let first = pb::ListResponse { namespaces: namespaces.clone(), ..chunk() };
    let last = pb::ListResponse { expression_errors: errors.clone(), ..chunk() };
    let chunks = tokio_stream::iter([Ok(first), Ok(chunk()), Ok(last)]);
    let listed = client.collect(chunks).await.unwrap();
    assert_eq!((listed.namespaces, listed.expression_errors), (namespaces, errors));
}
