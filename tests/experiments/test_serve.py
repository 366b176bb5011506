"""The server: its answers, its limits, and what strangers send it."""

import asyncio
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import httpx2 as httpx
import numpy as np
import psutil
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image
from sklearn.datasets import load_diabetes

from gramian import ConvDKMConfig, DenseDKMConfig, NumericalError, Predictor, fit
from gramian.experiments.cli.main import main
from gramian.experiments.explanations.comparison import Similar, Usual
from gramian.experiments.serve.answers import Answers
from gramian.experiments.serve.batches import Batches, TooBusyError
from gramian.experiments.serve.decoders import Decoders
from gramian.experiments.serve.guard import Limits
from gramian.experiments.serve.server import build_app
from gramian.image_files import ImageFileError
from gramian.train.data import digits

CONV = ConvDKMConfig(
    num_inducing=(16,), strides=(2,), blocks_per_stage=1, whitening=False, num_samples=20,
    mixing_start="near_identity", output_start="kernel",
)  # fmt: skip


@pytest.fixture(scope="module")
def images():
    """A classifier of digits, with data to compare with."""
    data = digits()
    train = data.train.subset(torch.arange(300))
    predictor = fit(CONV, train.x, train.y, max_epochs=3, batch_size=64, seed=0)
    usual, similar = Usual.of(predictor, data.test.x), Similar(predictor, train, ("output",))
    return predictor, data.test, Answers(predictor, usual, similar)


@pytest.fixture(scope="module")
def rows():
    """A regression."""
    x, y = load_diabetes(return_X_y=True)
    config = DenseDKMConfig(
        num_inducing=20, likelihood="gaussian", num_samples=20, kernel="squared_exponential",
        output_start="prior",
    )  # fmt: skip
    predictor = fit(config, x[:300], y[:300], max_epochs=30, seed=0)
    return predictor, x, Answers(predictor, Usual.of(predictor, torch.from_numpy(x[300:])))


@pytest.fixture(scope="module")
def client(images):
    app = build_app(images[2], "digits", Limits(data=40, pixels=10_000, bytes=100_000))
    with TestClient(app, "http://127.0.0.1") as started:
        yield started


def png(image, size=None) -> bytes:
    file = io.BytesIO()
    picture = Image.fromarray(np.asarray(image, np.uint8))
    (picture if size is None else picture.resize(size)).save(file, "PNG")
    return file.getvalue()


def upload(client, *contents, **parameters):
    files = [("files", (f"{n}.png", content)) for n, content in enumerate(contents)]
    return client.post("/predict/files", files=files, params=parameters)


# ---- answers ----


def test_json_and_files_are_answered_as_the_predictor_does(client, images):
    predictor, test, _ = images
    expected = predictor.predictions(test.x[:5])
    by_json = client.post("/predict", json={"inputs": test.x[:5].tolist()})
    by_file = upload(client, *(png(image[0]) for image in test.x[:5]))
    assert by_json.status_code == by_file.status_code == 200
    assert by_json.json() == by_file.json()
    for n, answer in enumerate(by_json.json()["predictions"]):
        p = list(answer["probabilities"].values())
        np.testing.assert_allclose(p, expected["probabilities"][n], atol=1e-6)
        assert answer["class"] == predictor.class_names[int(np.argmax(p))]
        assert answer["probability"] == max(p)
        assert answer["latent_variance"] == pytest.approx(float(expected["latent_variance"][n]))
        assert 0 <= answer["std"] <= 0.5
        assert set(answer["strangeness"]) >= {"entropy", "latent_variance"}
        assert "similar" not in answer


def test_similar_training_images_are_those_of_the_predictor(client, images):
    predictor, test, answers = images
    train = answers.similar.train
    places, values = predictor.similar(test.x[:2], train.x, k=3)
    reply = client.post("/predict", json={"inputs": test.x[:2].tolist()}, params={"similar": 3})
    for n, answer in enumerate(reply.json()["predictions"]):
        assert [each["number"] for each in answer["similar"]] == places[n].tolist()
        assert [each["similarity"] for each in answer["similar"]] == pytest.approx(
            values[n].tolist()
        )
        assert answer["similar"][0]["class"] == train.class_names[int(train.y[places[n, 0]])]
        assert answer["similar"][0]["picture"].startswith("data:image/png;base64,")


def test_what_is_no_digit_is_unlike_and_a_test_image_is_not():
    """Of a model that has learned: one of three epochs finds everything strange."""
    predictor, x = Predictor.from_pretrained("pretrained:digits"), digits().test.x
    noise = torch.randint(0, 256, (100, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    answers = Answers(predictor, Usual.of(predictor, x))
    usual, unlike, upside_down = (
        np.mean([a["unlike"] for a in answers(some, [0] * 100)])
        for some in (x[:100], noise.byte(), x[:100].flip(2))
    )
    assert usual < 0.1
    assert min(unlike, upside_down) > 2 * usual


def test_one_sample_has_a_standard_deviation_too():
    x, y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 2
    config = DenseDKMConfig(num_inducing=4, num_samples=1)
    answers = Answers(fit(config, x, y, max_epochs=1, seed=0))
    with TestClient(build_app(answers, "one"), "http://127.0.0.1") as client:
        reply = client.post("/predict", json={"inputs": x[:2].tolist()}).json()["predictions"]
    assert all(0 < answer["std"] < 0.5 for answer in reply)


def test_a_prediction_that_is_not_finite_is_no_answer(rows):
    predictor, x, _ = rows
    with TestClient(build_app(Answers(predictor), "rows"), "http://127.0.0.1") as client:
        inputs = [*x[:2].tolist(), [1e25] * 10, x[2].tolist()]
        reply = client.post("/predict", json={"inputs": inputs})
        detail = reply.json()["detail"]
        assert reply.status_code == 500, detail
        assert detail.startswith("data point 3")


def test_a_count_that_overflows_is_no_answer():
    x = np.linspace(0, 1, 30)[:, None]
    config = DenseDKMConfig(num_inducing=4, likelihood="poisson", num_samples=1)
    predictor = fit(config, x, np.arange(30), max_epochs=1, seed=0)
    with torch.no_grad():
        predictor.model.likelihood.shift.fill_(800)  # logarithms of rates
    with TestClient(build_app(Answers(predictor), "counts"), "http://127.0.0.1") as client:
        reply = client.post("/predict", json={"inputs": x[:1].tolist()})
    assert reply.status_code == 500
    assert reply.json()["detail"].startswith("data point 1: mean is NaN or infinite: the inputs")


def test_files_of_any_size_and_colour_are_scaled(client, images):
    _, test, _ = images
    flat = np.full((30, 20, 3), 120)
    reply = upload(client, png(test.x[0, 0], (80, 80)), png(flat))
    assert [set(answer["probabilities"]) for answer in reply.json()["predictions"]] == 2 * [
        set("0123456789")
    ]


def test_rows_are_answered_in_the_units_of_the_target(rows):
    predictor, x, answers = rows
    with TestClient(build_app(answers, "rows"), "http://127.0.0.1") as client:
        reply = client.post("/predict", json={"inputs": x[:4].tolist()}).json()["predictions"]
        mean, variance = predictor.mean_and_variance(torch.from_numpy(x[:4]))
        for n, answer in enumerate(reply):
            assert answer["mean"] == pytest.approx(mean[n].tolist())
            assert answer["std"] == pytest.approx(variance[n].sqrt().tolist())
            assert set(answer["strangeness"]) == {"latent_variance"}
        far = client.post("/predict", json={"inputs": [[100.0] * 10]}).json()["predictions"][0]
        assert far["strangeness"]["latent_variance"] > 0.9
        refused = upload(client, png(np.zeros((8, 8))))
        assert refused.status_code == 422
        assert "takes rows of 10 numbers" in refused.json()["detail"]


def test_health_metrics_model_and_description(client):
    assert client.get("/health").json()["status"] == "ok"
    assert client.get("/model").json()["shape"] == [1, 8, 8]
    upload(client, b"")
    text = client.get("/metrics").text
    assert 'gramian_requests_total{path="/predict/files",status="422"}' in text
    assert "gramian_batch_data_bucket" in text
    client.get("/no/such/path/" + "x" * 50)
    assert 'path="other",status="404"' in client.get("/metrics").text
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/predict", "/predict/files", "/health", "/metrics", "/model"} <= set(paths)
    page = client.get("/")
    assert page.headers["x-frame-options"] == "DENY"
    assert "http" not in page.text.replace("http-equiv", "")  # nothing is loaded from elsewhere


def test_usual_scores_survive_their_file(images, tmp_path):
    predictor, test, _ = images
    usual = Usual.of(predictor, test.x)
    usual.save(tmp_path, "digits")
    again = Usual.load(tmp_path)
    for name, shares in usual.shares(usual.scores).items():
        np.testing.assert_allclose(again.shares(usual.scores)[name], shares, atol=0.01)
    assert Usual.load(tmp_path / "nothing") is None


# ---- what is refused ----


def bomb() -> bytes:
    """A picture of 64 million pixels in a few thousand bytes."""
    file = io.BytesIO()
    Image.new("1", (8000, 8000)).save(file, "PNG")
    return file.getvalue()


def animation() -> bytes:
    file = io.BytesIO()
    frames = [Image.new("L", (8, 8), level) for level in (0, 100)]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "its format is none of"),
        (b"hello", "its format is none of"),
        (png(np.eye(8) * 200)[:50], "cannot be read as an image"),
        (bomb(), r"has 8000×8000 pixels, more than 10,000"),
        (animation(), "holds several images"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "its format is none of"),
    ],
    ids=["empty", "text", "cut", "bomb", "animation", "svg"],
)
def test_files_that_are_no_image(client, content, message):
    reply = upload(client, png(np.zeros((8, 8))), content)
    assert reply.status_code == 422
    assert message in reply.json()["detail"]
    assert "file 2 ('1.png')" in reply.json()["detail"]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("", 422, "body"),
        ("{", 422, "JSON"),
        ("[1]", 422, "valid dictionary"),
        ('{"inputs": []}', 422, "at least 1 item"),
        ('{"inputs": "x"}', 422, "valid list"),
        ('{"inputs": [[1, 2], [3]]}', 422, "as many for each"),
        ('{"inputs": [["a"]]}', 422, "must be numbers"),
        ('{"inputs": [{}]}', 422, "must be numbers"),
        ('{"inputs": [' + "9" * 400 + "]}", 422, "must be numbers"),
        ('{"inputs": [null]}', 422, "must be numbers"),
        ('{"inputs": [[[["7"]]]]}', 422, "must be numbers"),
        ('{"inputs": [[[[true]]]]}', 422, "must be numbers"),
        ('{"inputs": [[[[1, 2], [3]]]]}', 422, "must be numbers"),
        ('{"inputs": [[1, 2]]}', 422, "takes data of shape (1, 8, 8), got (2,)"),
        (json.dumps({"inputs": np.full((1, 1, 8, 8), 256).tolist()}), 422, "between 0 and 255"),
        (json.dumps({"inputs": np.full((1, 1, 8, 8), np.nan).tolist()}), 422, "finite"),
        (json.dumps({"inputs": np.full((1, 1, 8, 8), np.inf).tolist()}), 422, "finite"),
        (json.dumps({"inputs": np.zeros((41, 1, 1, 1)).tolist()}), 413, "40 data points"),
        ('{"inputs": ' + "[" * 40_000 + "]" * 40_000 + "}", 400, "parsing the body"),
        (" " * 100_001, 413, "100,000 bytes"),
    ],
)
def test_json_that_is_no_data(client, body, status, message):
    headers = {"content-type": "application/json"}
    reply = client.post("/predict", content=body, headers=headers)
    assert reply.status_code == status
    assert message in reply.json()["detail"]
    assert len(reply.text) < 2000  # and not the request again


def test_a_body_of_unknown_length_is_counted(client):
    parts = (b" " * 10_000 for _ in range(1000))
    reply = client.post("/predict", content=parts, headers={"content-type": "application/json"})
    assert reply.status_code == 413


def test_strange_lengths_hosts_and_origins(images):
    app = build_app(images[2], "digits", hosts=("127.0.0.1", "localhost", "[::1]"))
    with TestClient(app, "http://127.0.0.1") as client:
        for headers, status in [
            ({"content-length": "-1"}, 413),
            ({"content-length": "a"}, 413),
            ({"host": "evil.example"}, 400),
            ({"host": "127.0.0.1.evil.example:8000"}, 400),
            ({"host": "localhost:8000"}, 200),
            ({"host": "[::1]:8000"}, 200),
            ({"origin": "http://evil.example"}, 403),
            ({"origin": "null"}, 403),
            ({"origin": "http://127.0.0.1"}, 200),
        ]:
            assert client.get("/health", headers=headers).status_code == status, headers


def test_a_proxy_in_front(images):
    app = build_app(images[2], "digits", hosts=("127.0.0.1",), proxies=("models.example.org",))
    with TestClient(app, "http://127.0.0.1") as client:
        for headers, status in [
            ({"host": "models.example.org"}, 200),
            ({"host": "127.0.0.1:8000", "origin": "https://models.example.org"}, 200),
            ({"host": "models.example.org", "origin": "https://models.example.org"}, 200),
            ({"host": "127.0.0.1:8000", "origin": "https://evil.example.org"}, 403),
            ({"host": "evil.example.org"}, 400),
        ]:
            assert client.get("/model", headers=headers).status_code == status, headers


def test_a_model_of_floating_point_images_takes_no_levels(tmp_path, capsys):
    """What 200 of 255 would mean to it, nobody knows; its own numbers are not rounded."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 1, 8, 8)), np.arange(40) % 2
    small = ConvDKMConfig(num_inducing=(4,), strides=(2,), blocks_per_stage=1, whitening=False,
                          num_samples=5)  # fmt: skip
    predictor = fit(small, x, y, max_epochs=1)
    expected = predictor.predictions(x[:2])["probabilities"]
    with TestClient(build_app(Answers(predictor), "x"), "http://127.0.0.1") as client:
        answers = client.post("/predict", json={"inputs": x[:2].tolist()}).json()["predictions"]
        found = [list(answer["probabilities"].values()) for answer in answers]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        picture = Image.new("L", (8, 8))
        content = io.BytesIO()
        picture.save(content, "PNG")
        reply = client.post("/predict/files", files=[("files", ("a.png", content.getvalue()))])
        assert reply.status_code == 422
        assert "floating-point images" in reply.json()["detail"]
    predictor.save_pretrained(tmp_path / "model")
    picture.save(tmp_path / "a.png")
    np.savez(tmp_path / "own.npz", x=x, y=y)
    model, own = str(tmp_path / "model"), ["--data", str(tmp_path / "own.npz")]
    for words in (["predict", model, str(tmp_path / "a.png")],
                  ["evaluate", model, *own, "--ood", "noise"],
                  ["explain", model, *own, "--test", "0"]):  # fmt: skip
        assert main(words) == 2, words
        assert re.search("floating-point|8-bit", capsys.readouterr().err), words
    assert main(["evaluate", model, *own]) == 0


def test_a_token_opens_everything_but_health_is_open(images):
    with TestClient(build_app(images[2], "digits", token="secret"), "http://host") as client:
        assert client.get("/health").status_code == 200
        for path in ("/", "/model", "/metrics", "/openapi.json", "/?token=wrong"):
            assert client.get(path).status_code == 401, path
        assert client.post("/predict", json={"inputs": [1]}).status_code == 401
        bearer = {"authorization": "Bearer secret"}
        assert client.get("/model", headers=bearer).status_code == 200
        wrong = {"authorization": "Bearer söcret".encode()}
        assert client.get("/model", headers=wrong).status_code == 401
        greeted = client.get("/?token=secret", follow_redirects=False)
        assert greeted.status_code == 303
        assert greeted.headers["location"] == "/"
        assert "HttpOnly" in greeted.headers["set-cookie"]
        assert client.get("/").status_code == 200  # by the cookie
        client.cookies.clear()
        assert client.get("/", headers={"cookie": "a b=; ;=="}).status_code == 401


def test_an_answer_that_takes_too_long_is_an_answer_too(images):
    predictor, test, _ = images

    class Slow(Answers):
        def __call__(self, x, num_similar):
            time.sleep(1)
            return super().__call__(x, num_similar)

    app = build_app(Slow(predictor), "digits", Limits(seconds=0.2))
    with TestClient(app, "http://127.0.0.1") as client:
        reply = client.post("/predict", json={"inputs": test.x[:1].tolist()})
        assert reply.status_code == 504
        assert "within 0.2 s" in reply.json()["detail"]
        assert client.get("/health").status_code == 200


# ---- decoders ----


def decoding(steps):
    """Run steps with decoders of which one has decoded an image."""

    async def run():
        decode = Decoders(most_pixels=100)
        try:
            assert (await decode("a", png(np.eye(8)))).shape == (1, 8, 8)
            await steps(decode)
            (process,) = decode.idle
            return process.pid
        finally:
            await decode.close()

    assert not psutil.pid_exists(asyncio.run(run()))


def test_a_file_that_takes_too_long_is_given_up():
    async def steps(decode):
        (late,) = decode.idle
        late.send_signal(signal.SIGSTOP)
        decode.seconds = 0.1
        with pytest.raises(ImageFileError, match="slow takes more than"):
            await decode("slow", png(np.eye(8)))
        assert not psutil.pid_exists(late.pid)
        decode.seconds = 60.0
        assert (await decode("a", png(np.eye(8)))).shape == (1, 8, 8)

    decoding(steps)


def test_a_file_of_a_request_that_has_ended_is_given_up():
    async def steps(decode):
        (late,) = decode.idle
        late.send_signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await decode("a", png(np.eye(8)))
        assert not psutil.pid_exists(late.pid)
        assert (await decode("a", png(np.eye(8)))).shape == (1, 8, 8)

    decoding(steps)


def test_a_decoder_that_fails_fails_one_file_only():
    async def steps(decode):
        (process,) = decode.idle
        with pytest.raises(ImageFileError, match="has 11×10 pixels, more than 100"):
            await decode("a", png(np.zeros((10, 11))))
        assert decode.idle == [process]
        process.kill()
        with pytest.raises(ImageFileError, match="the decoder failed"):
            await decode("a", png(np.eye(8)))
        assert (await decode("a", png(np.eye(8)))).shape == (1, 8, 8)

    decoding(steps)


# ---- batches ----


def test_requests_that_wait_together_share_a_batch():
    sizes = []

    def work(x, num_similar):
        time.sleep(0.05)
        return [{"value": float(v), "similar": n} for v, n in zip(x, num_similar, strict=True)]

    async def ask():
        batches = Batches(work, most=8, queue=100, watch=sizes.append)
        worker = asyncio.create_task(batches.run())
        found = await asyncio.gather(
            *(batches.submit(torch.tensor([float(n), n + 0.5]), n % 3) for n in range(20))
        )
        worker.cancel()
        batches.close()
        return found

    found = asyncio.run(ask())
    for n, answers in enumerate(found):
        assert [a["value"] for a in answers] == [n, n + 0.5]
        assert [a["similar"] for a in answers] == [n % 3] * 2
    assert sum(sizes) == 40
    assert max(sizes) == 8
    assert len(sizes) <= 7


def test_nobody_pays_for_the_request_of_another():
    def work(x, num_similar):
        if not x.isfinite().all():
            raise NumericalError("NaN")
        return [{} for _ in x]

    async def ask():
        batches = Batches(work, most=8, queue=100)
        values = [torch.tensor([1.0]), torch.tensor([torch.nan]), torch.tensor([2.0])]
        asked = [asyncio.create_task(batches.submit(x, 0)) for x in values]
        await asyncio.sleep(0)
        worker = asyncio.create_task(batches.run())
        found = await asyncio.gather(*asked, return_exceptions=True)
        worker.cancel()
        return found

    first, second, third = asyncio.run(ask())
    assert first == third == [{}]
    assert isinstance(second, NumericalError)


def test_too_many_are_turned_away_and_those_who_left_are_forgotten():
    async def ask():
        batches = Batches(lambda x, n: [{} for _ in x], most=4, queue=4)
        first = asyncio.create_task(batches.submit(torch.zeros(3), 0))
        await asyncio.sleep(0)
        with pytest.raises(TooBusyError):
            await batches.submit(torch.zeros(2), 0)
        first.cancel()
        last = asyncio.create_task(batches.submit(torch.zeros(1), 0))
        await asyncio.sleep(0)
        assert len(batches._next()) == 1
        assert batches.num_waiting == 0
        last.cancel()

    asyncio.run(ask())


def test_a_full_queue_says_when_to_come_back(images):
    predictor, test, _ = images
    app = build_app(Answers(predictor), "digits", Limits(waiting=1))
    with TestClient(app, "http://127.0.0.1") as client:
        reply = client.post("/predict", json={"inputs": test.x[:2].tolist()})
        assert reply.status_code == 503
        assert reply.headers["retry-after"] == "1"


# ---- the program ----


@pytest.fixture(scope="module")
def saved(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    images[0].save_pretrained(folder)
    return folder


class Served:
    """The program in a process of its own."""

    def __init__(self, folder, *words: str, program=("-m", "gramian")) -> None:
        command = [sys.executable, *program, "serve", str(folder), "--port", "0", "--json"]
        self.process = subprocess.Popen(
            [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self.facts = json.loads(self.process.stdout.readline())

    def stop(self, *numbers: int) -> tuple[int, str]:
        for number in numbers:
            self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@pytest.mark.parametrize(
    ("numbers", "code"),
    [((signal.SIGINT,), 130), ((signal.SIGTERM,), 143), ((signal.SIGTERM, signal.SIGINT), 143)],
)
def test_the_program_serves_until_it_is_told_to_stop(saved, images, numbers, code):
    _, test, _ = images
    served = Served(saved, "--data", "digits", "--among", "50")
    reply = httpx.post(
        served.facts["url"] + "predict?similar=1", json={"inputs": test.x[:1].tolist()}, timeout=60
    )
    assert len(reply.json()["predictions"][0]["similar"]) == 1
    found, errors = served.stop(*numbers)
    assert found in (code, 128 + numbers[-1]), errors  # two at once come in any order
    assert "Traceback" not in errors


BUSY = """if True:
    import sys, time
    from gramian.experiments.cli.main import main
    from gramian.experiments.serve import server
    from gramian.experiments.serve.answers import Answers
    server.GRACE, server.END = 0.5, 1.0
    Answers.__call__ = lambda *_: time.sleep(60)
    sys.exit(main(sys.argv[1:]))
"""


def test_the_program_ends_soon_whatever_is_under_way(saved, images):
    served = Served(saved, program=("-c", BUSY))
    address = re.search(r"http://(.*):(\d+)", served.facts["url"]).groups()
    picture = png(images[1].x[0, 0])
    part = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    body = part + picture + b"\r\n--x--\r\n"
    head = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\nContent-Type: {}\r\n\r\n"
    upload = head.format("/predict/files", len(body), "multipart/form-data; boundary=x").encode()
    slow = head.format("/predict", 1000, "application/json").encode() + b"{"
    program = psutil.Process(served.process.pid)
    with ExitStack() as clients:

        def send(content):
            client = clients.enter_context(socket.create_connection(address, timeout=20))
            client.sendall(content)
            return client

        for _ in range(20):
            send(b"")
        predicting = send(upload + body)  # decoded, and then a prediction that takes a minute
        while "gramian_batch_data_sum 1.0" not in httpx.get(served.facts["url"] + "metrics").text:
            time.sleep(0.05)
        (decoder,) = program.children()
        decoder.suspend()
        waiting = [send(slow), send(upload + body), predicting]
        time.sleep(0.3)
        started = time.monotonic()
        code, errors = served.stop(signal.SIGTERM)
        assert time.monotonic() - started < 5
        assert all(client.recv(100).startswith(b"HTTP/1.1 503") for client in waiting)
    assert code == 143, errors
    assert "Traceback" not in errors
    assert "CancelledError" not in errors
    assert "a prediction under way was given up" in errors
    assert not decoder.is_running()


def test_other_addresses_want_a_token(saved, monkeypatch):
    monkeypatch.setenv("GRAMIAN_SERVE_TOKEN", "ab+c/d==&#")  # as openssl makes them
    served = Served(saved, "--host", "0.0.0.0")
    printed = served.facts["url"].replace("0.0.0.0", "127.0.0.1")
    assert httpx.get(printed, timeout=60, follow_redirects=True).status_code == 200
    url = printed.partition("?")[0]
    assert httpx.get(url + "model", timeout=60).status_code == 401
    bearer = {"authorization": f"Bearer {served.facts['token']}"}
    facts = httpx.get(url + "model", headers=bearer, timeout=60).json()
    assert (facts["similar"], facts["strangeness"]) == (False, False)
    _, errors = served.stop(signal.SIGINT)
    assert "similar training data are not shown" in errors


def test_every_address_of_this_machine_answers_by_its_own_name(saved):
    served = Served(saved, "--host", "127.0.0.2")
    assert served.facts["token"] is None
    assert httpx.get(served.facts["url"] + "model", timeout=60).status_code == 200
    served.stop(signal.SIGINT)


def test_what_the_program_refuses(saved, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, code, message in [
            ([str(saved), "--port", port], 1, f"cannot listen on 127.0.0.1, port {port}"),
            ([str(saved), "--port", "70000"], 2, "--port must be at most 65535"),
            ([str(saved), "--host", "no.such.host.example"], 1, "cannot listen on no.such"),
            ([str(saved), "--port", "0", "--data", "sine"], 2, "takes data of shape"),
            ([str(saved), "--port", "0", "--data", "nothing"], 4, "nothing"),
            ([str(saved / "none")], 1, "holds no saved model"),
            ([str(saved), "--max_bytes", "0"], 2, "max_bytes"),
            ([str(saved), "--max_waiting", "10"], 2, "at least --batch_size (256)"),
        ]:
            assert main(["serve", *words]) == code, words
            assert message in capsys.readouterr().err, words
