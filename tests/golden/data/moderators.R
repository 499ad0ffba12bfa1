# Meta-regression with Knapp and Hartung's errors, and subgroups, by R's metafor, of the BCG data.
# Rscript moderators.R, in this folder; writes moderators.json.
suppressPackageStartupMessages({library(metafor); library(jsonlite)})
d <- escalc(measure="RR", ai=tpos, bi=tneg, ci=cpos, di=cneg, data=dat.bcg)
fine <- list(threshold=1e-14, maxiter=1000)
told <- function(mods, test) {
  m <- rma(yi, vi, mods=mods, data=d, method="REML", test=test, control=fine)
  list(coefficients=as.numeric(coef(m)), errors=m$se, low=m$ci.lb, high=m$ci.ub, p=m$pval, tau2=m$tau2,
    r2=m$R2 / 100, i2=m$I2 / 100, q=m$QE, q_p=m$QEp, f=m$QM, f_p=m$QMp, df=m$ddf)
}
found <- list(
  meta=list(R=R.version.string, metafor=as.character(packageVersion("metafor"))),
  plain=told(~ ablat + year, "knha"), floored=told(~ ablat + year, "adhoc"),
  groups=told(~ alloc, "adhoc"))
write(toJSON(found, auto_unbox=TRUE, digits=NA, pretty=TRUE), "moderators.json")
