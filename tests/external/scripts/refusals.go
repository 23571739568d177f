// Sends a large body again and again with Go's own client, on as many connections as that opens, and prints the status
// of each answer, or what went wrong.
//
//	refusals VERSION URL FILE COUNT
package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
)

func main() {
	version, url, file := os.Args[1], os.Args[2], os.Args[3]
	count, _ := strconv.Atoi(os.Args[4])
	body, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(version == "1")
	protocols.SetUnencryptedHTTP2(version == "2")
	client := http.Client{Transport: &http.Transport{Protocols: protocols}}
	for range count {
		answer, err := client.Post(url, "image/png", bytes.NewReader(body))
		if err != nil {
			fmt.Println(err)
			continue
		}
		if _, err := io.ReadAll(answer.Body); err != nil {
			fmt.Println("its body:", err)
		} else if version := strconv.Itoa(answer.ProtoMajor); version != os.Args[1] {
			fmt.Println("HTTP version", version)
		} else {
			fmt.Println(answer.StatusCode)
		}
		answer.Body.Close()
	}
}
