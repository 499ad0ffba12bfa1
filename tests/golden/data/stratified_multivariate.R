# Fourfold tables (rma.mh, rma.peto) and several outcomes of a site (rma.mv), by R's metafor.
# Rscript stratified_multivariate.R, in this folder; writes stratified_multivariate.json.
suppressPackageStartupMessages({library(metafor); library(jsonlite)})
num <- function(x) as.numeric(x)
version <- function(name) as.character(packageVersion(name))
told <- list(meta=list(R=R.version.string, metafor=version("metafor"), metadat=version("metadat")))

# ---- fourfold tables: a, b of those exposed, c, d of the others
pooled <- function(a, b, c, d) {
  found <- list(a=a, b=b, c=c, d=d)
  for (measure in c("OR", "RR", "RD")) {
    m <- suppressWarnings(rma.mh(measure=measure, ai=a, bi=b, ci=c, di=d))
    found[[measure]] <- list(estimate=num(m$beta), se=num(m$se), p=num(m$pval), low=num(m$ci.lb),
      high=num(m$ci.ub), q=num(m$QE), q_df=m$k.yi - 1, q_p=num(m$QEp), weights=num(weights(m)))
  }
  m <- suppressWarnings(rma.peto(ai=a, bi=b, ci=c, di=d))
  found$PETO <- list(estimate=num(m$beta), se=num(m$se), p=num(m$pval), low=num(m$ci.lb),
    high=num(m$ci.ub), q=num(m$QE), q_df=m$k.yi - 1, q_p=num(m$QEp), weights=num(weights(m)))
  found
}
bcg <- metadat::dat.bcg
told$tables <- list(
  bcg=pooled(bcg$tpos, bcg$tneg, bcg$cpos, bcg$cneg),
  # A cell of 0, a site without an event, one with nothing else.
  zeros=pooled(c(4, 10, 0, 3, 7), c(20, 30, 15, 0, 0), c(0, 8, 0, 2, 5), c(25, 40, 14, 9, 0)),
  noisy=pooled(c(12.3, 0.4, 33.25), c(80.1, 45.75, 210.5), c(9.6, 2.2, 20.125), c(95, 38.3, 190.9)),
  alone=pooled(12, 88, 5, 95))

# ---- several outcomes: y (k, p), s (k, p, p), null where a site does not tell an outcome
long <- function(y, s) {
  k <- nrow(y); p <- ncol(y)
  v <- matrix(0, k * p, k * p)
  for (i in seq_len(k)) { at <- (i - 1) * p + seq_len(p); v[at, at] <- s[i, , ] }
  yi <- as.vector(t(y)); kept <- !is.na(yi)
  list(data=data.frame(yi=yi, outcome=factor(rep(seq_len(p), k)), site=factor(rep(seq_len(k), each=p)))[kept, ],
    v=v[kept, kept], p=p)
}
summed <- function(f) list(estimates=num(coef(f)), covariance=unname(as.matrix(f$vb)),
  q=num(f$QE), q_df=f$k - f$p, q_p=num(f$QEp))
given <- function(l, t) {
  sd <- sqrt(diag(t)); r <- t / outer(sd, sd)
  f <- rma.mv(yi, l$v, mods=~outcome - 1, random=~outcome | site, struct="UN", data=l$data,
    tau2=diag(t), rho=r[lower.tri(r)], method="REML")
  c(list(between=t, log_likelihood=num(logLik(f))), summed(f))
}
# rma.mv stops where one of its optimisers does: the highest likelihood of several, each begun at
# the last one's end, and how far the others' T is from it.
estimated <- function(l) {
  best <- NULL; ends <- list()
  tight <- list(
    list(optimizer="nlminb", rel.tol=1e-15, x.tol=1e-14, eval.max=1e5, iter.max=1e5),
    list(optimizer="BFGS", reltol=1e-16, maxit=1e5),
    list(optimizer="Nelder-Mead", reltol=1e-16, maxit=1e5),
    list(optimizer="nlm", gradtol=1e-14, steptol=1e-14, iterlim=1e5),
    list(optimizer="nlminb", rel.tol=1e-15, x.tol=1e-14, eval.max=1e5, iter.max=1e5, cholesky=TRUE))
  for (round in 1:3) for (control in tight) {
    if (!is.null(best) && round > 1 && is.null(control$cholesky)) {
      control$tau2.init <- best$tau2; control$rho.init <- best$rho
    }
    f <- try(suppressWarnings(rma.mv(yi, l$v, mods=~outcome - 1, random=~outcome | site, struct="UN",
      data=l$data, method="REML", control=control)), silent=TRUE)
    if (inherits(f, "try-error")) next
    ends <- c(ends, list(num(f$G)))
    if (is.null(best) || logLik(f) > logLik(best)) best <- f
  }
  apart <- max(sapply(ends, function(g) max(abs(g - num(best$G)))))
  c(list(between=unname(as.matrix(best$G)), log_likelihood=num(logLik(best)), apart=apart,
    fits=length(ends)), summed(best))
}
fixed <- function(l) {
  f <- rma.mv(yi, l$v, mods=~outcome - 1, data=l$data, method="FE")
  c(list(log_likelihood=num(logLik(f))), summed(f))
}
all_of <- function(y, s, t) {
  l <- long(y, s)
  list(y=y, s=s, FE=fixed(l), given=given(l, t), REML=estimated(l))
}
berkey <- metadat::dat.berkey1998
vb <- vcalc(vi=1, cluster=author, rvars=c(v1i, v2i), data=berkey)
yb <- matrix(berkey$yi, ncol=2, byrow=TRUE)
sb <- array(0, c(5, 2, 2)); for (i in 1:5) sb[i, , ] <- as.matrix(vb)[2 * i - 1:0, 2 * i - 1:0]
t2 <- matrix(c(0.02, 0.01, 0.01, 0.03), 2)
made <- function(k, p, t, seed, lost) {
  set.seed(seed)
  y <- matrix(0, k, p); s <- array(0, c(k, p, p)); mu <- seq(-0.4, 0.6, length.out=p)
  for (i in seq_len(k)) {
    a <- matrix(rnorm(p * p), p); v <- (diag(p) + 0.4 * crossprod(a)) * runif(1, 0.01, 0.05)
    s[i, , ] <- round((v + t(v)) / 2, 6)
    y[i, ] <- round(mu + drop(t(chol(t + s[i, , ])) %*% rnorm(p)), 6)
  }
  y[lost] <- NA
  all_of(y, s, t)
}
t3 <- 0.09 * (0.5 * diag(3) + 0.5); t4 <- 0.16 * (0.7 * diag(4) + 0.3)
told$vectors <- list(
  berkey1998=all_of(yb, sb, t2),
  lost=all_of(replace(yb, cbind(c(2, 5), c(1, 2)), NA), sb, t2),
  three=made(14, 3, t3, 11, cbind(c(1, 4, 9, 9), c(2, 3, 1, 2))),
  four=made(25, 4, t4, 5, cbind(c(3, 8, 20, 20), c(1, 4, 2, 3))))
write_json(told, "stratified_multivariate.json", digits=NA, auto_unbox=TRUE, pretty=TRUE, null="null", na="null")
