# Aalen and Johansen's cumulative incidence, by R's survival: multistate survfit of the mgus2 data,
# progression with death without it as a competing event, times in months, many of them tied.
# Rscript competing_risks.R, in this folder; writes competing_risks.json.
suppressPackageStartupMessages({library(survival); library(jsonlite)})
d <- survival::mgus2
time <- ifelse(d$pstat == 0, d$futime, d$ptime)
kind <- ifelse(d$pstat == 0, 2 * d$death, 1)
fit <- survfit(Surv(time, factor(kind, 0:2, c("censored", "progression", "death"))) ~ 1)
at <- c(24, 120, 240)
s <- summary(fit, times=at)
state <- match("progression", fit$states)
found <- list(
  meta=list(R=R.version.string, survival=as.character(packageVersion("survival"))),
  time=time, kind=kind, at=at, share=s$pstate[, state], error=s$std.err[, state])
write(toJSON(found, auto_unbox=TRUE, digits=NA), "competing_risks.json")
