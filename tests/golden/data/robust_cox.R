# Lin and Wei's robust covariance of Cox's model with Efron's ties, by R's survival.
# Rscript robust_cox.R, in this folder; reads lung.csv, writes robust_cox.json.
suppressPackageStartupMessages({library(survival); library(jsonlite)})
lung <- read.csv("lung.csv")
lung$ward <- (seq_len(nrow(lung)) - 1) %% 3
control <- coxph.control(eps=1e-14, toler.chol=1e-15, iter.max=50)
told <- function(formula) {
  f <- coxph(formula, lung, ties="efron", robust=TRUE, control=control)
  list(n=f$n, coef=as.list(coef(f)), robust=unname(f$var), model=unname(f$naive.var))
}
found <- list(
  meta=list(R=R.version.string, survival=as.character(packageVersion("survival"))),
  plain=told(Surv(time, status) ~ age + sex),
  strata=told(Surv(time, status) ~ age + sex + strata(ward)),
  # Months, rounded up: most events are tied.
  tied=told(Surv(ceiling(time/30), status) ~ age + sex),
  tied_strata=told(Surv(ceiling(time/30), status) ~ age + sex + strata(ward)))
write(toJSON(found, auto_unbox=TRUE, digits=NA, pretty=TRUE), "robust_cox.json")
