"""A batched model in LitServe: python before.py 8001"""

import sys

import litserve as ls


class SquareAPI(ls.LitAPI):
    def setup(self, device):
        self.model = lambda values: [value**2 for value in values]

    def decode_request(self, request):
        return request["input"]

    def predict(self, batch):
        return self.model(batch)

    def encode_response(self, output):
        return {"output": output}


if __name__ == "__main__":
    api = SquareAPI(max_batch_size=8, batch_timeout=0.01)
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=2, timeout=5)
    server.run(port=int(sys.argv[1]), generate_client_file=False)
