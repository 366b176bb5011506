"""The equations as NumPy loops over points and pixels: slow, and nothing to get wrong.

Blocks are tuples (ii, ti, tt) of arrays. Nothing here imports gramian.
"""

import math

import numpy as np

JITTER = 1e-4


def normalized_gaussian(c, x, y, beta):
    s = math.sqrt(x * y)
    return s * math.exp(beta * (c / s - 1))


def arc_cosine(c, x, y, beta):
    x, y = (1 + JITTER) * x + JITTER, (1 + JITTER) * y + JITTER
    m = x * y
    return (math.sqrt(m - c * c) + (math.pi - math.acos(c / math.sqrt(m))) * c) / math.pi


def squared_exponential(c, x, y, beta):
    return math.exp(-0.5 * beta * (x + y - 2 * c))


def matern32(c, x, y, beta):
    d = math.sqrt(3 * beta * max(x + y - 2 * c, 0))
    return (1 + d) * math.exp(-d)


def matern52(c, x, y, beta):
    d = math.sqrt(5 * beta * max(x + y - 2 * c, 0))
    return (1 + d + d * d / 3) * math.exp(-d)


KERNELS = {
    "normalized_gaussian": normalized_gaussian,
    "arc_cosine": arc_cosine,
    "squared_exponential": squared_exponential,
    "matern32": matern32,
    "matern52": matern52,
}
KEEPS_THE_DIAGONAL = {"normalized_gaussian", "arc_cosine"}


def kernel(name, blocks, w=1.0, b=0.1, beta=1.0):
    """w k(G) + b with jitter on both diagonals."""
    ii, ti, tt = blocks
    k = KERNELS[name]
    P = len(ii)
    K_ii, K_ti, k_tt = np.zeros_like(ii), np.zeros_like(ti), np.zeros_like(tt)
    for p in range(P):
        for q in range(P):
            if p != q:
                K_ii[p, q] = w * k(ii[p, q], ii[p, p], ii[q, q], beta) + b
        own = ii[p, p] if name in KEEPS_THE_DIAGONAL else 1.0
        if name == "arc_cosine":
            own = (1 + JITTER) * own + JITTER
        K_ii[p, p] = (1 + JITTER) * (w * own + b) + JITTER
    for t in np.ndindex(tt.shape):
        own = tt[t] if name in KEEPS_THE_DIAGONAL else 1.0
        k_tt[t] = (1 + JITTER) * (w * own + b) + JITTER
        for p in range(P):
            K_ti[(*t, p)] = w * k(ti[(*t, p)], tt[t], ii[p, p], beta) + b
    return K_ii, K_ti, k_tt


def convolution(blocks, C, stride=1):
    """Algorithm 1's convolution with mixing C [P_out, P_in, f, f]; the published border rule."""
    ii, ti, tt = blocks
    P_out, _, f, _ = C.shape
    B, H, W = tt.shape
    pad, D = f // 2, f * f
    height, width = (H + 2 * pad - f) // stride + 1, (W + 2 * pad - f) // stride + 1
    K_ii = np.zeros((P_out, P_out))
    for dy in range(f):
        for dx in range(f):
            K_ii += C[:, :, dy, dx] @ ii @ C[:, :, dy, dx].T / D
    K_ti, k_tt = np.zeros((B, height, width, P_out)), np.zeros((B, height, width))
    for b, row, column in np.ndindex(B, height, width):
        inside = []
        for dy in range(f):
            for dx in range(f):
                y, x = row * stride + dy - pad, column * stride + dx - pad
                if 0 <= y < H and 0 <= x < W:
                    K_ti[b, row, column] += C[:, :, dy, dx] @ ti[b, y, x] / D
                    inside.append(tt[b, y, x])
        k_tt[b, row, column] = sum(inside) / len(inside)
    return K_ii, K_ti, k_tt


def gram_layer(blocks, G, unexplained="kept"):
    """Condition on G: Algorithm 1, with explicit inverses."""
    ii, ti, tt = blocks
    inverse = np.linalg.inv(ii)
    G_ti, g_tt = np.zeros_like(ti), np.zeros_like(tt)
    for t in np.ndindex(tt.shape):
        k = ti[t]
        G_ti[t] = k @ inverse @ G
        g_tt[t] = k @ inverse @ G @ inverse @ k
        if unexplained == "kept":
            g_tt[t] += tt[t] - k @ inverse @ k
    return G, G_ti, g_tt


def global_norm(blocks):
    """Divide features by their root mean square, inducing and data apart."""
    ii, ti, tt = blocks
    n_i, n_t = np.mean(np.diag(ii)), np.mean(tt)
    return ii / n_i, ti / math.sqrt(n_i * n_t), tt / n_t


def average(first, second, weights):
    return tuple(weights[0] * a + weights[1] * b for a, b in zip(first, second, strict=True))


def spatial_mean(blocks):
    ii, ti, tt = blocks
    B = len(tt)
    return ii, ti.reshape(B, -1, len(ii)).mean(1), tt.reshape(B, -1).mean(1)


def dense_input(X, Y):
    N = X.shape[1]
    return X @ X.T / N, Y @ X.T / N, (Y * Y).sum(1) / N


def patch_input(X, images):
    """Dot products with inducing patches X [P, C, f, f]."""
    P, C, f, _ = X.shape
    B, _, H, W = images.shape
    pad, D = f // 2, C * f * f
    flat = X.reshape(P, -1)
    ti, tt = np.zeros((B, H, W, P)), np.zeros((B, H, W))
    for b, row, column in np.ndindex(B, H, W):
        patch, inside = np.zeros((C, f, f)), []
        for dy in range(f):
            for dx in range(f):
                y, x = row + dy - pad, column + dx - pad
                if 0 <= y < H and 0 <= x < W:
                    patch[:, dy, dx] = images[b, :, y, x]
                    inside.append(np.mean(images[b, :, y, x] ** 2))
        ti[b, row, column] = flat @ patch.ravel() / D
        tt[b, row, column] = sum(inside) / len(inside)
    return flat @ flat.T / D, ti, tt


# ---- without inducing points: one matrix over all pixels of all images, training images first ----


def full_kernel(name, G, num_training, w=1.0, b=0.1, jitter=JITTER, beta=1.0):
    """w k(G) + b with jitter on the diagonal; arc_cosine inflates that of training points twice."""
    k = KERNELS[name]
    K = np.zeros_like(G)
    for p, q in np.ndindex(G.shape):
        if p != q:
            K[p, q] = w * k(G[p, q], G[p, p], G[q, q], beta) + b
            continue
        own = G[p, p] if name in KEEPS_THE_DIAGONAL else 1.0
        if name == "arc_cosine" and p < num_training:
            own = (1 + jitter) * own + jitter
        K[p, p] = (1 + jitter) * (w * own + b) + jitter
    return K


def pair_convolution(K, space, f, stride=1):
    """Eq. conv_limit1: (1/D) Σ_d K_{i(r+d),j(s+d)}, zeros outside both images."""
    H, W = space
    images, pad = len(K) // (H * W), f // 2
    height, width = math.ceil(H / stride), math.ceil(W / stride)
    old = list(np.ndindex(images, H, W))
    place = {point: number for number, point in enumerate(old)}
    new = list(np.ndindex(images, height, width))
    out = np.zeros((len(new), len(new)))
    for p, (i, y, x) in enumerate(new):
        for q, (j, v, u) in enumerate(new):
            for dy in range(-pad, pad + 1):
                for dx in range(-pad, pad + 1):
                    a = place.get((i, y * stride + dy, x * stride + dx))
                    c = place.get((j, v * stride + dy, u * stride + dx))
                    if a is not None and c is not None:
                        out[p, q] += K[a, c] / f**2
    return out


def condition_full(K, G):
    """Eq. gram_ind_prop for one matrix over training points, as many as G has, and new ones."""
    n = len(G)
    A = K[n:, :n] @ np.linalg.inv(K[:n, :n])
    G_tt = A @ G @ A.T + K[n:, n:] - A @ K[:n, n:]
    return np.block([[G, G @ A.T], [A @ G, G_tt]])


def pool_pairs(G, num_pixels):
    """Algorithm 1's SpatialPool: the mean over all pairs of pixels of two images."""
    images = len(G) // num_pixels
    out = np.zeros((images, images))
    for i, j in np.ndindex(images, images):
        for r, s in np.ndindex(num_pixels, num_pixels):
            out[i, j] += G[i * num_pixels + r, j * num_pixels + s] / num_pixels**2
    return out


def gp_regression(K, y, noise_var):
    """Mean and variance of f at the points of K after the first len(y)."""
    n = len(y)
    inverse = np.linalg.inv(K[:n, :n] + noise_var * np.eye(n))
    mean = K[n:, :n] @ inverse @ y
    var = [K[t, t] - K[t, :n] @ inverse @ K[:n, t] for t in range(n, len(K))]
    return mean, np.array(var)[:, None]
