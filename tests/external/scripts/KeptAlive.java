// Refused requests and good ones in turn on kept-alive connections of HTTP/1.1. Prints the good answers.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.io.ByteArrayInputStream;

class KeptAlive {
    public static void main(String[] args) throws Exception {
        String url = args[0];
        byte[] bytes = new byte[1000];
        String[][] refusals = {{"/nowhere", "application/json"}, {"/readyz", "application/json"}, {"/digits", "application/zip"}};
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        int good = 0;
        for (int number = 0; number < Integer.parseInt(args[1]); number++) {
            String[] refusal = refusals[number % refusals.length];
            // Of unknown length: in chunks.
            BodyPublisher body = number % 5 == 4
                ? BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(bytes))
                : BodyPublishers.ofByteArray(bytes);
            HttpRequest refused = HttpRequest.newBuilder(URI.create(url + refusal[0])).header("content-type", refusal[1]).POST(body).build();
            int status = client.send(refused, BodyHandlers.discarding()).statusCode();
            if (status != 404 && status != 405 && status != 415) {
                throw new Exception("status " + status);
            }
            HttpRequest next = HttpRequest.newBuilder(URI.create(url + "/livez")).build();
            if (client.send(next, BodyHandlers.discarding()).statusCode() == 200) {
                good++;
            }
        }
        System.out.println(good);
    }
}
