// A route, a function and a model, called by the client that openapi-generator's go wrote: GENERATED BASE SEVEN.
package main

import (
	"context"
	"fmt"
	"os"

	client "made"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	seven := os.Args[2]
	configuration := client.NewConfiguration()
	configuration.Servers = client.ServerConfigurations{{URL: os.Args[1]}}
	api, ctx := client.NewAPIClient(configuration), context.Background()

	route, _, err := api.RoutesAPI.PostDigits(ctx).Image(*client.NewImage(seven)).Execute()
	check(err)

	var image, base64 any = seven, "base64"
	call := client.FunctionCall{Kwargs: map[string]*any{"image": &image}}
	called, _, err := api.RoutesAPI.Call(ctx, "digits").FunctionCall(call).Execute()
	check(err)

	picture := client.NewInferenceInput("image", "BYTES", []int64{1})
	picture.Data = []any{seven}
	picture.Parameters = map[string]*any{"content_type": &base64}
	request := client.NewInferenceRequest([]client.InferenceInput{*picture})
	inferred, _, err := api.ModelsAPI.Infer(ctx, "digits").InferenceRequest(*request).Execute()
	check(err)

	for _, output := range inferred.Outputs {
		if output.Name == "label" {
			fmt.Println(route.Label, called.(map[string]any)["label"], output.Data[0])
		}
	}
}
